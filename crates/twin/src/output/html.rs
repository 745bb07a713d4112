//! One page that needs nothing beside itself: table, notes and figures, these inline as SVG.

use super::svg::escape;
use super::table::{cell, heading};
use crate::experiment::Report;
use crate::row::Row;

const STYLE: &str = "body{font-family:sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222}\
table{border-collapse:collapse;margin:1em 0}th,td{border-bottom:1px solid #ddd;padding:.2em .7em;text-align:right}\
th:first-child,td:first-child{text-align:left}svg{max-width:100%;height:auto;margin:1em 0}.wide{overflow-x:auto}";

/// A report as one HTML page.
pub(super) fn page(report: &Report) -> String {
    let title = escape(&report.title);
    let mut html = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>{title}</title>\n<style>{STYLE}</style>\n\
         </head>\n<body>\n<h1>{title}</h1>\n"
    );
    html.push_str(&rows(&report.rows));
    html.push_str(&rows(&report.nodes));
    for note in &report.notes {
        html.push_str(&format!("<p>{}</p>\n", escape(note)));
    }
    for figure in &report.figures {
        html.push_str(&super::figure_svg(figure));
    }
    html.push_str("</body>\n</html>\n");
    html
}

/// A table; nothing for no rows.
fn rows(rows: &[Row]) -> String {
    let Some(first) = rows.first() else {
        return String::new();
    };
    let mut html = String::from("<div class=\"wide\"><table>\n<tr>");
    for (name, _) in &first.0 {
        html.push_str(&format!("<th>{}</th>", escape(&heading(name))));
    }
    html.push_str("</tr>\n");
    for row in rows {
        html.push_str("<tr>");
        for (name, value) in &row.0 {
            html.push_str(&format!("<td>{}</td>", escape(&cell(name, value))));
        }
        html.push_str("</tr>\n");
    }
    html.push_str("</table></div>\n");
    html
}
