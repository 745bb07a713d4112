//! A picture as a list of shapes, in units of a pixel of the SVG.

/// Width of every figure.
pub(super) const WIDTH: f64 = 800.0;
/// Height of every figure.
pub(super) const HEIGHT: f64 = 480.0;

/// `#rrggbb`.
pub(super) type Colour = [u8; 3];

pub(super) const INK: Colour = [0x22, 0x22, 0x22];
pub(super) const GRID: Colour = [0xdd, 0xdd, 0xdd];
/// Okabe and Ito's palette: told apart by people who do not see all colours, too.
pub(super) const SERIES: [Colour; 7] = [
    [0x00, 0x72, 0xb2],
    [0xd5, 0x5e, 0x00],
    [0x00, 0x9e, 0x73],
    [0xcc, 0x79, 0xa7],
    [0xe6, 0x9f, 0x00],
    [0x56, 0xb4, 0xe9],
    [0x55, 0x55, 0x55],
];

/// Where a text begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Shape {
    Rectangle {
        x: f64,
        y: f64,
        width: f64,
        height: f64,
        colour: Colour,
    },
    Line {
        points: Vec<(f64, f64)>,
        colour: Colour,
        width: f64,
    },
    Text {
        x: f64,
        y: f64,
        size: f64,
        anchor: Anchor,
        /// Upwards instead of to the right.
        upwards: bool,
        text: String,
    },
}

/// Shapes, the first at the bottom.
pub(super) type Scene = Vec<Shape>;
