//! Columns.

/// How a column is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Text.
    Left,
    /// Numbers.
    Right,
}

/// Rows of cells, each column as wide as its widest cell, two blanks between; no blanks at the ends
/// of lines.
pub struct Table {
    columns: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
    /// Columns that are left out first where there is no room.
    spare: Vec<String>,
}

impl Table {
    /// A table with these headings.
    pub fn new(columns: &[(&str, Align)]) -> Table {
        let columns = columns
            .iter()
            .map(|(name, align)| (name.to_string(), *align))
            .collect();
        Table {
            columns,
            rows: Vec::new(),
            spare: Vec::new(),
        }
    }

    /// Columns that may be left out, by their headings: the first of them first.
    pub fn spare(mut self, columns: &[&str]) -> Table {
        self.spare = columns.iter().map(|name| name.to_string()).collect();
        self
    }

    /// Adds a row.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// The table as lines.
    pub fn render(&self) -> String {
        self.render_within(None)
    }

    /// The same, without spare columns where the lines would be longer.
    pub fn render_within(&self, room: Option<usize>) -> String {
        let heading: Vec<String> = self.columns.iter().map(|(name, _)| name.clone()).collect();
        let all = || std::iter::once(&heading).chain(&self.rows);
        let width = |column: usize| {
            all()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let shown = self.shown(&widths, room);
        let mut text = String::new();
        for row in all() {
            let mut line = String::new();
            for (at, cell) in row.iter().enumerate().filter(|(at, _)| shown[*at]) {
                let pad = " ".repeat(widths[at] - cell.chars().count());
                let (before, after) = match self.columns[at].1 {
                    Align::Left => (String::new(), pad),
                    Align::Right => (pad, String::new()),
                };
                line.push_str(&format!("{before}{cell}{after}  "));
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }

    /// Which columns there is room for.
    fn shown(&self, widths: &[usize], room: Option<usize>) -> Vec<bool> {
        let mut shown = vec![true; widths.len()];
        let Some(room) = room else {
            return shown;
        };
        let taken = |shown: &[bool]| {
            let with_gap = widths.iter().zip(shown).filter(|(_, is_shown)| **is_shown);
            let taken: usize = with_gap.map(|(width, _)| width + 2).sum();
            taken.saturating_sub(2)
        };
        let spare = self.spare.iter().filter_map(|name| {
            let mut columns = self.columns.iter();
            columns.position(|(heading, _)| heading == name)
        });
        for column in spare {
            if taken(&shown) <= room {
                break;
            }
            shown[column] = false;
        }
        shown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_left_out_column_by_column() {
        let names = ["node", "address", "in", "used"];
        let table = Table::new(&names.map(|name| (name, Align::Right)));
        let mut table = table.spare(&["in", "address"]);
        table.row(
            ["1", "10.0.0.1:7070", "1 MiB", "2 GiB"]
                .map(String::from)
                .to_vec(),
        );
        let heading = |room| {
            let text = table.render_within(room);
            let line = text.lines().next().expect("a heading");
            line.split_whitespace()
                .map(String::from)
                .collect::<Vec<_>>()
        };
        assert_eq!(heading(None), names);
        let whole = table.render().lines().map(str::len).max().expect("lines");
        assert_eq!(heading(Some(whole)), names);
        assert_eq!(heading(Some(whole - 1)), ["node", "address", "used"]);
        assert_eq!(heading(Some(12)), ["node", "used"]);
        assert_eq!(
            heading(Some(1)),
            ["node", "used"],
            "the others say too much"
        );
    }

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&[
            ("name", Align::Left),
            ("size", Align::Right),
            ("state", Align::Left),
        ]);
        table.row(vec!["ä".into(), "1".into(), "dirty".into()]);
        table.row(vec!["longer".into(), "12345".into(), "clean".into()]);
        assert_eq!(
            table.render(),
            "name     size  state\nä           1  dirty\nlonger  12345  clean\n"
        );
    }
}
