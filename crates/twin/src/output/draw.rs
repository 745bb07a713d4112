//! From a figure to shapes: axes, ticks, legend, data.

use super::canvas::{Anchor, GRID, HEIGHT, INK, SERIES, Scene, Shape, WIDTH};
use crate::figure::{Figure, Plot};

const LEFT: f64 = 80.0;
const RIGHT: f64 = WIDTH - 20.0;
const TOP: f64 = 70.0;
const BOTTOM: f64 = HEIGHT - 60.0;
const TEXT: f64 = 13.0;
const TICKS: f64 = 6.0;

/// A linear axis.
struct Axis {
    from: f64,
    to: f64,
    step: f64,
}

impl Axis {
    /// Round numbers around `low..=high`.
    fn new(low: f64, high: f64) -> Self {
        let (low, high) = match (low.is_finite() && high.is_finite(), high > low) {
            (true, true) => (low, high),
            (true, false) => (low.min(0.0), high.max(low.min(0.0) + 1.0)),
            (false, _) => (0.0, 1.0),
        };
        let rough = (high - low) / TICKS;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0]
            .iter()
            .map(|m| m * power)
            .find(|step| *step >= rough)
            .unwrap_or(rough);
        Self {
            from: (low / step).floor() * step,
            to: (high / step).ceil() * step,
            step,
        }
    }

    fn ticks(&self) -> impl Iterator<Item = f64> {
        let count = ((self.to - self.from) / self.step).round() as u32;
        (0..=count).map(|i| self.from + f64::from(i) * self.step)
    }

    fn label(&self, value: f64) -> String {
        let decimals = (-self.step.log10().floor()).clamp(0.0, 9.0) as usize;
        format!("{value:.decimals$}")
    }

    fn share(&self, value: f64) -> f64 {
        (value - self.from) / (self.to - self.from)
    }
}

fn x_at(share: f64) -> f64 {
    LEFT + (RIGHT - LEFT) * share
}

fn y_at(share: f64) -> f64 {
    BOTTOM - (BOTTOM - TOP) * share
}

/// Draws a figure.
pub(super) fn draw(figure: &Figure) -> Scene {
    let mut scene = vec![Shape::Rectangle {
        x: 0.0,
        y: 0.0,
        width: WIDTH,
        height: HEIGHT,
        colour: [0xff; 3],
    }];
    text(&mut scene, LEFT, 24.0, 17.0, Anchor::Start, &figure.title);
    let names: Vec<&str> = match &figure.plot {
        Plot::Lines(lines) => lines.iter().map(|(name, _)| name.as_str()).collect(),
        Plot::Bars { series, .. } => series.iter().map(|(name, _)| name.as_str()).collect(),
    };
    legend(&mut scene, &names);
    match &figure.plot {
        Plot::Lines(lines) => draw_lines(&mut scene, lines),
        Plot::Bars { categories, series } => draw_bars(&mut scene, categories, series),
    }
    let middle = f64::midpoint(LEFT, RIGHT);
    text(
        &mut scene,
        middle,
        HEIGHT - 12.0,
        TEXT,
        Anchor::Middle,
        &figure.x_label,
    );
    scene.push(Shape::Text {
        x: 20.0,
        y: f64::midpoint(TOP, BOTTOM),
        size: TEXT,
        anchor: Anchor::Middle,
        upwards: true,
        text: figure.y_label.clone(),
    });
    scene
}

fn text(scene: &mut Scene, x: f64, y: f64, size: f64, anchor: Anchor, text: &str) {
    scene.push(Shape::Text {
        x,
        y,
        size,
        anchor,
        upwards: false,
        text: text.into(),
    });
}

fn legend(scene: &mut Scene, names: &[&str]) {
    let mut x = LEFT;
    for (i, name) in names.iter().enumerate() {
        scene.push(Shape::Rectangle {
            x,
            y: 41.0,
            width: 14.0,
            height: 10.0,
            colour: SERIES[i % SERIES.len()],
        });
        text(scene, x + 20.0, 51.0, TEXT, Anchor::Start, name);
        // About seven units a letter.
        x += 40.0 + 7.0 * name.chars().count() as f64;
    }
}

fn vertical_axis(scene: &mut Scene, axis: &Axis) {
    for tick in axis.ticks() {
        let y = y_at(axis.share(tick));
        scene.push(Shape::Line {
            points: vec![(LEFT, y), (RIGHT, y)],
            colour: GRID,
            width: 1.0,
        });
        text(
            scene,
            LEFT - 8.0,
            y + 4.0,
            TEXT,
            Anchor::End,
            &axis.label(tick),
        );
    }
    scene.push(Shape::Line {
        points: vec![(LEFT, TOP), (LEFT, BOTTOM), (RIGHT, BOTTOM)],
        colour: INK,
        width: 1.0,
    });
}

fn draw_lines(scene: &mut Scene, lines: &[(String, Vec<(f64, f64)>)]) {
    let points = || lines.iter().flat_map(|(_, points)| points);
    let least = |values: &mut dyn Iterator<Item = f64>| values.fold(f64::INFINITY, f64::min);
    let most = |values: &mut dyn Iterator<Item = f64>| values.fold(f64::NEG_INFINITY, f64::max);
    let x = Axis::new(
        least(&mut points().map(|p| p.0)),
        most(&mut points().map(|p| p.0)),
    );
    let y = Axis::new(0.0, most(&mut points().map(|p| p.1)).max(1e-12));
    vertical_axis(scene, &y);
    for tick in x.ticks() {
        let at = x_at(x.share(tick));
        text(
            scene,
            at,
            BOTTOM + 18.0,
            TEXT,
            Anchor::Middle,
            &x.label(tick),
        );
    }
    for (i, (_, points)) in lines.iter().enumerate() {
        scene.push(Shape::Line {
            points: points
                .iter()
                .map(|p| (x_at(x.share(p.0)), y_at(y.share(p.1))))
                .collect(),
            colour: SERIES[i % SERIES.len()],
            width: 2.0,
        });
    }
}

fn draw_bars(scene: &mut Scene, categories: &[String], series: &[(String, Vec<f64>)]) {
    let most = series
        .iter()
        .flat_map(|(_, values)| values.iter().copied())
        .fold(0.0, f64::max);
    let y = Axis::new(0.0, most.max(1e-12));
    vertical_axis(scene, &y);
    let group = (RIGHT - LEFT) / categories.len().max(1) as f64;
    let bar = group * 0.8 / series.len().max(1) as f64;
    for (c, category) in categories.iter().enumerate() {
        let begin = LEFT + group * (c as f64 + 0.1);
        let middle = LEFT + group * (c as f64 + 0.5);
        text(
            scene,
            middle,
            BOTTOM + 18.0,
            TEXT - 1.0,
            Anchor::Middle,
            category,
        );
        for (s, (_, values)) in series.iter().enumerate() {
            let Some(value) = values.get(c) else {
                continue;
            };
            let top = y_at(y.share(*value));
            scene.push(Shape::Rectangle {
                x: begin + bar * s as f64,
                y: top,
                width: bar * 0.92,
                height: BOTTOM - top,
                colour: SERIES[s % SERIES.len()],
            });
        }
    }
}
