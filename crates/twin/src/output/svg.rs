//! Shapes as SVG.

use std::fmt::Write;

use super::canvas::{Anchor, Colour, HEIGHT, Scene, Shape, WIDTH};

/// The picture as a document of its own.
pub(super) fn render(scene: &Scene) -> String {
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
         font-family=\"sans-serif\">\n"
    );
    for shape in scene {
        // Writing to a string cannot fail.
        let _ = one(&mut svg, shape);
    }
    svg.push_str("</svg>\n");
    svg
}

fn one(svg: &mut String, shape: &Shape) -> std::fmt::Result {
    match shape {
        Shape::Rectangle {
            x,
            y,
            width,
            height,
            colour,
        } => writeln!(
            svg,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{}\"/>",
            hex(*colour)
        ),
        Shape::Line {
            points,
            colour,
            width,
        } => {
            let points: Vec<String> = points
                .iter()
                .map(|(x, y)| format!("{x:.1},{y:.1}"))
                .collect();
            writeln!(
                svg,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{width}\"/>",
                points.join(" "),
                hex(*colour)
            )
        }
        Shape::Text {
            x,
            y,
            size,
            anchor,
            upwards,
            text,
        } => {
            let anchor = match anchor {
                Anchor::Start => "start",
                Anchor::Middle => "middle",
                Anchor::End => "end",
            };
            let turn = match upwards {
                true => format!(" transform=\"rotate(-90 {x:.1} {y:.1})\""),
                false => String::new(),
            };
            writeln!(
                svg,
                "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{size}\" text-anchor=\"{anchor}\"{turn}>{}</text>",
                escape(text)
            )
        }
    }
}

fn hex(colour: Colour) -> String {
    let [r, g, b] = colour;
    format!("#{r:02x}{g:02x}{b:02x}")
}

/// Text as it may stand in SVG and HTML.
pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}
