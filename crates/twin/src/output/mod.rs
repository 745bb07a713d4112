//! Results as people and programs take them: tables, JSON, CSV, figures, one HTML page.

mod canvas;
mod draw;
mod html;
mod png;
mod svg;
mod table;
#[cfg(test)]
mod tests;

pub use png::DrawError;
pub use table::{csv, json, list, nodes, nodes_csv, table};

use crate::experiment::Report;
use crate::figure::Figure;

/// A file of a report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// Its name in the directory.
    pub name: String,
    /// What is in it.
    pub content: Vec<u8>,
}

/// A figure as SVG.
pub fn figure_svg(figure: &Figure) -> String {
    svg::render(&draw::draw(figure))
}

/// A figure as PNG, twice the size of the SVG.
pub fn figure_png(figure: &Figure) -> Result<Vec<u8>, DrawError> {
    png::render(&draw::draw(figure))
}

/// All files of a report: `rows.json`, `rows.csv`, `nodes.csv` where there are nodes, each figure
/// as SVG and PNG, and `report.html`, which holds all of them.
pub fn files(report: &Report) -> Result<Vec<File>, DrawError> {
    let mut files = vec![
        File {
            name: "rows.json".into(),
            content: json(report).into_bytes(),
        },
        File {
            name: "rows.csv".into(),
            content: csv(report).into_bytes(),
        },
        File {
            name: "report.html".into(),
            content: html::page(report).into_bytes(),
        },
    ];
    if !report.nodes.is_empty() {
        files.push(File {
            name: "nodes.csv".into(),
            content: nodes_csv(report).into_bytes(),
        });
    }
    for figure in &report.figures {
        files.push(File {
            name: format!("{}.svg", figure.name),
            content: figure_svg(figure).into_bytes(),
        });
        files.push(File {
            name: format!("{}.png", figure.name),
            content: figure_png(figure)?,
        });
    }
    Ok(files)
}
