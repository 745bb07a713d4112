//! Shapes as PNG. Letters are filled outlines of a font that is compiled in, so that no font need
//! be installed.

use tiny_skia::{FillRule, Paint, Path, PathBuilder, Pixmap, Stroke, Transform};
use ttf_parser::{Face, OutlineBuilder};

use super::canvas::{Anchor, Colour, HEIGHT, INK, Scene, Shape, WIDTH};

/// Pixels per unit.
const SCALE: f32 = 2.0;

/// Why there is no picture.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DrawError {
    /// No memory for the pixels.
    #[error("a picture of this size cannot be made")]
    Size,
    /// The font that is compiled in cannot be read.
    #[error("the font cannot be read: {0}")]
    Font(String),
    /// The encoder gave up.
    #[error("the picture cannot be encoded: {0}")]
    Encode(String),
}

/// The picture as a file.
pub(super) fn render(scene: &Scene) -> Result<Vec<u8>, DrawError> {
    let size = |units: f64| (units as f32 * SCALE) as u32;
    let mut pixmap = Pixmap::new(size(WIDTH), size(HEIGHT)).ok_or(DrawError::Size)?;
    let face = Face::parse(epaint_default_fonts::UBUNTU_LIGHT, 0)
        .map_err(|error| DrawError::Font(error.to_string()))?;
    for shape in scene {
        one(&mut pixmap, &face, shape);
    }
    pixmap
        .encode_png()
        .map_err(|error| DrawError::Encode(error.to_string()))
}

fn one(pixmap: &mut Pixmap, face: &Face<'_>, shape: &Shape) {
    let scale = Transform::from_scale(SCALE, SCALE);
    match shape {
        Shape::Rectangle {
            x,
            y,
            width,
            height,
            colour,
        } => {
            let (x, y, w, h) = (*x as f32, *y as f32, *width as f32, *height as f32);
            // A bar of no height is no rectangle.
            if let Some(rect) = tiny_skia::Rect::from_xywh(x, y, w, h) {
                pixmap.fill_rect(rect, &paint(*colour), scale, None);
            }
        }
        Shape::Line {
            points,
            colour,
            width,
        } => {
            let mut path = PathBuilder::new();
            for (i, (x, y)) in points.iter().enumerate() {
                match i {
                    0 => path.move_to(*x as f32, *y as f32),
                    _ => path.line_to(*x as f32, *y as f32),
                }
            }
            let stroke = Stroke {
                width: *width as f32,
                ..Stroke::default()
            };
            // A single point is no path.
            if let Some(path) = path.finish() {
                pixmap.stroke_path(&path, &paint(*colour), &stroke, scale, None);
            }
        }
        Shape::Text {
            x,
            y,
            size,
            anchor,
            upwards,
            text,
        } => {
            let Some((path, width)) = outline(face, text, *size as f32) else {
                return;
            };
            let shift = match anchor {
                Anchor::Start => 0.0,
                Anchor::Middle => -width / 2.0,
                Anchor::End => -width,
            };
            let turn = if *upwards { -90.0 } else { 0.0 };
            let place = Transform::from_translate(shift, 0.0)
                .post_concat(Transform::from_rotate(turn))
                .post_translate(*x as f32, *y as f32)
                .post_scale(SCALE, SCALE);
            pixmap.fill_path(&path, &paint(INK), FillRule::Winding, place, None);
        }
    }
}

fn paint(colour: Colour) -> Paint<'static> {
    let [r, g, b] = colour;
    let mut paint = Paint::default();
    paint.set_color_rgba8(r, g, b, 255);
    paint.anti_alias = true;
    paint
}

/// Outlines of a text that begins at 0,0, and its width. `None` for blanks alone.
fn outline(face: &Face<'_>, text: &str, size: f32) -> Option<(Path, f32)> {
    let scale = size / f32::from(face.units_per_em());
    let mut pen = Pen {
        path: PathBuilder::new(),
        x: 0.0,
        scale,
    };
    for letter in text.chars() {
        let glyph = face.glyph_index(letter).or_else(|| face.glyph_index('?'))?;
        face.outline_glyph(glyph, &mut pen);
        pen.x += f32::from(face.glyph_hor_advance(glyph).unwrap_or(0)) * scale;
    }
    Some((pen.path.finish()?, pen.x))
}

/// Font units, upwards, become units, downwards.
struct Pen {
    path: PathBuilder,
    x: f32,
    scale: f32,
}

impl Pen {
    fn at(&self, x: f32, y: f32) -> (f32, f32) {
        (self.x + x * self.scale, -y * self.scale)
    }
}

impl OutlineBuilder for Pen {
    fn move_to(&mut self, x: f32, y: f32) {
        let (x, y) = self.at(x, y);
        self.path.move_to(x, y);
    }

    fn line_to(&mut self, x: f32, y: f32) {
        let (x, y) = self.at(x, y);
        self.path.line_to(x, y);
    }

    fn quad_to(&mut self, x1: f32, y1: f32, x: f32, y: f32) {
        let ((x1, y1), (x, y)) = (self.at(x1, y1), self.at(x, y));
        self.path.quad_to(x1, y1, x, y);
    }

    fn curve_to(&mut self, x1: f32, y1: f32, x2: f32, y2: f32, x: f32, y: f32) {
        let ((x1, y1), (x2, y2), (x, y)) = (self.at(x1, y1), self.at(x2, y2), self.at(x, y));
        self.path.cubic_to(x1, y1, x2, y2, x, y);
    }

    fn close(&mut self) {
        self.path.close();
    }
}
