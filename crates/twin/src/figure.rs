//! What is drawn: lines over numbers, or groups of bars.

/// One figure; `output` draws it.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// Name of its file.
    pub name: String,
    /// Heading.
    pub title: String,
    /// Below the horizontal axis.
    pub x_label: String,
    /// Beside the vertical axis.
    pub y_label: String,
    /// What is drawn.
    pub plot: Plot,
}

/// What is drawn.
#[derive(Debug, Clone, PartialEq)]
pub enum Plot {
    /// Named lines through points.
    Lines(Vec<(String, Vec<(f64, f64)>)>),
    /// For each category a bar of each series.
    Bars {
        /// Below the bars.
        categories: Vec<String>,
        /// A value for each category.
        series: Vec<(String, Vec<f64>)>,
    },
}

impl Figure {
    /// A figure of lines.
    pub fn lines(
        name: &str,
        title: &str,
        x_label: &str,
        y_label: &str,
        lines: Vec<(String, Vec<(f64, f64)>)>,
    ) -> Self {
        Self {
            name: name.into(),
            title: title.into(),
            x_label: x_label.into(),
            y_label: y_label.into(),
            plot: Plot::Lines(lines),
        }
    }

    /// A figure of bars.
    pub fn bars(
        name: &str,
        title: &str,
        x_label: &str,
        y_label: &str,
        categories: Vec<String>,
        series: Vec<(String, Vec<f64>)>,
    ) -> Self {
        Self {
            name: name.into(),
            title: title.into(),
            x_label: x_label.into(),
            y_label: y_label.into(),
            plot: Plot::Bars { categories, series },
        }
    }
}
