//! Bars and lines as SVG; colours are those of the page, dark or light.

use std::fmt::Write;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 220.0;
/// For the numbers beside and below.
const LEFT: f64 = 70.0;
const BELOW: f64 = 28.0;
const ABOVE: f64 = 12.0;

/// Text as it may stand in HTML and SVG.
pub fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            c if c.is_control() => safe.push('\u{fffd}'),
            c => safe.push(c),
        }
    }
    safe
}

/// The least round number that is not below.
fn round_up(most: f64) -> f64 {
    if most <= 0.0 || !most.is_finite() {
        return 1.0;
    }
    let unit = 10f64.powf(most.log10().floor());
    let steps = [1.0, 2.0, 2.5, 5.0, 10.0];
    let fits = |step: &&f64| *step * unit >= most * (1.0 - 1e-9);
    steps
        .iter()
        .find(fits)
        .map_or(10.0 * unit, |step| step * unit)
}

fn begin(svg: &mut String, title: &str, top: f64, label: &dyn Fn(f64) -> String) {
    let title = escape(title);
    // Writing to a string cannot fail.
    let _ = write!(
        svg,
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{title}\"><title>{title}</title>"
    );
    for part in [0.0, 0.5, 1.0] {
        let y = HEIGHT - BELOW - part * (HEIGHT - BELOW - ABOVE);
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{WIDTH}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
             <text class=\"end\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            LEFT - 8.0,
            y + 4.0,
            escape(&label(part * top))
        );
    }
}

/// Bars of equal width. `ends` stand below the first and the last.
pub fn bars(
    title: &str,
    values: &[f64],
    ends: (&str, &str),
    label: &dyn Fn(f64) -> String,
) -> String {
    let top = round_up(values.iter().copied().fold(0.0, f64::max));
    let mut svg = String::new();
    begin(&mut svg, title, top, label);
    let step = (WIDTH - LEFT) / values.len().max(1) as f64;
    for (at, value) in values.iter().enumerate() {
        let height = value / top * (HEIGHT - BELOW - ABOVE);
        let _ = write!(
            svg,
            "<rect class=\"c0\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{height:.1}\"><title>{}</title></rect>",
            LEFT + at as f64 * step + step * 0.1,
            HEIGHT - BELOW - height,
            step * 0.8,
            escape(&label(*value))
        );
    }
    below(&mut svg, LEFT, "start", ends.0);
    below(&mut svg, WIDTH, "end", ends.1);
    svg.push_str("</svg>");
    svg
}

fn below(svg: &mut String, x: f64, anchor: &str, text: &str) {
    let _ = write!(
        svg,
        "<text class=\"{anchor}\" x=\"{x:.1}\" y=\"{:.1}\">{}</text>",
        HEIGHT - 8.0,
        escape(text)
    );
}

/// A line through points at even distances, each with its name below, and a level to compare with.
pub fn line(
    title: &str,
    points: &[(String, f64)],
    level: Option<f64>,
    label: &dyn Fn(f64) -> String,
) -> String {
    let values = points.iter().map(|(_, value)| *value);
    let top = round_up(values.chain(level).fold(0.0, f64::max));
    let mut svg = String::new();
    begin(&mut svg, title, top, label);
    let height = |value: f64| HEIGHT - BELOW - value / top * (HEIGHT - BELOW - ABOVE);
    if let Some(level) = level {
        let y = height(level);
        let _ = write!(
            svg,
            "<line class=\"level\" x1=\"{LEFT}\" x2=\"{WIDTH}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>"
        );
    }
    let step = (WIDTH - LEFT) / points.len().max(1) as f64;
    let place = |at: usize| LEFT + (at as f64 + 0.5) * step;
    let path: Vec<String> = points
        .iter()
        .enumerate()
        .map(|(at, (_, value))| format!("{:.1},{:.1}", place(at), height(*value)))
        .collect();
    let _ = write!(
        svg,
        "<polyline class=\"c0\" points=\"{}\"/>",
        path.join(" ")
    );
    for (at, (name, value)) in points.iter().enumerate() {
        let _ = write!(
            svg,
            "<circle class=\"c0\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"4\"><title>{}: {}</title></circle>",
            place(at),
            height(*value),
            escape(name),
            escape(&label(*value))
        );
        below(&mut svg, place(at), "middle", name);
    }
    svg.push_str("</svg>");
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_end_at_round_numbers_that_are_not_below() {
        for (most, top) in [
            (0.0, 1.0),
            (1.0, 1.0),
            (1.1, 2.0),
            (230.0, 250.0),
            (0.03, 0.05),
            (9e9, 1e10),
        ] {
            let found = round_up(most);
            assert!((found - top).abs() < 1e-9 * top, "{most}: {found}");
        }
    }

    #[test]
    fn no_name_breaks_the_picture() {
        let name = "<script>\"&\u{1b}";
        let svg = line(name, &[(name.into(), 1.0)], Some(2.0), &|v| format!("{v}"));
        assert!(!svg.contains("<script") && !svg.contains('\u{1b}'), "{svg}");
        let svg = bars(name, &[], (name, name), &|v| format!("{v}"));
        assert!(!svg.contains("NaN") && !svg.contains("<script"), "{svg}");
    }
}
