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

    /// The same for lines of so many characters: long texts lose their middle, then spare columns
    /// go, then texts get shorter still.
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
        let mut widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        self.narrow(
            &mut widths,
            &vec![true; self.columns.len()],
            room,
            TEXT_LEAST,
        );
        let shown = self.shown(&widths, room);
        self.narrow(&mut widths, &shown, room, TEXT_SHORTEST);
        let mut text = String::new();
        for row in all() {
            let mut line = String::new();
            for (at, cell) in row.iter().enumerate().filter(|(at, _)| shown[*at]) {
                let cell = without_middle(cell, widths[at]);
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

    /// Takes from the widest texts what is too much.
    fn narrow(&self, widths: &mut [usize], shown: &[bool], room: Option<usize>, least: usize) {
        let Some(room) = room else {
            return;
        };
        while let Some(over @ 1..) = taken(widths, shown).checked_sub(room) {
            let texts = (0..widths.len()).filter(|at| {
                let is_text = self.columns[*at].1 == Align::Left;
                is_text && shown[*at] && widths[*at] > least
            });
            let Some(widest) = texts.max_by_key(|at| widths[*at]) else {
                return;
            };
            widths[widest] -= over.min(widths[widest] - least);
        }
    }

    /// Which columns there is room for.
    fn shown(&self, widths: &[usize], room: Option<usize>) -> Vec<bool> {
        let mut shown = vec![true; widths.len()];
        let Some(room) = room else {
            return shown;
        };
        let spare = self.spare.iter().filter_map(|name| {
            let mut columns = self.columns.iter();
            columns.position(|(heading, _)| heading == name)
        });
        for column in spare {
            if taken(widths, &shown) <= room {
                break;
            }
            shown[column] = false;
        }
        shown
    }
}

/// Texts are this long before other columns have to go for them, and at the least.
const TEXT_LEAST: usize = 32;
const TEXT_SHORTEST: usize = 12;

/// Width of a line with these columns.
fn taken(widths: &[usize], shown: &[bool]) -> usize {
    let with_gap = widths.iter().zip(shown).filter(|(_, is_shown)| **is_shown);
    let taken: usize = with_gap.map(|(width, _)| width + 2).sum();
    taken.saturating_sub(2)
}

/// A text of so many characters: begin and end say most of a path.
fn without_middle(text: &str, width: usize) -> String {
    let count = text.chars().count();
    if count <= width || width == 0 {
        return text.to_string();
    }
    let before = (width - 1) / 2;
    let after = width - 1 - before;
    let begin = text.chars().take(before);
    let end = text.chars().skip(count - after);
    begin.chain(['\u{2026}']).chain(end).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_do_not_push_numbers_off() {
        let mut table = Table::new(&[
            ("application", Align::Left),
            ("version", Align::Right),
            ("files", Align::Right),
        ])
        .spare(&["files"]);
        let name = format!("group/user/{}/ckpt-{{version}}", "x".repeat(100));
        table.row(vec![name.clone(), "120".into(), "8".into()]);
        assert!(table.render().contains(&name));
        for (room, columns) in [(80, 3), (48, 3), (40, 2), (24, 2)] {
            let text = table.render_within(Some(room));
            for line in text.lines() {
                assert!(line.chars().count() <= room, "{room}: {text}");
                assert_eq!(line.split_whitespace().count(), columns, "{room}: {text}");
            }
        }
        let text = table.render_within(Some(80));
        let line = text.lines().nth(1).expect("a row");
        assert_eq!(line.chars().count(), 80, "{text}");
        assert!(
            line.starts_with("group/user/x") && line.contains("…xx"),
            "{text}"
        );
        assert!(line.ends_with("x/ckpt-{version}      120      8"), "{text}");
    }

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
