//! Draws plots as SVG: a frame, two logarithmic axes, lines.

use std::fmt::Write as _;

use crate::lateness::LatenessSamples;
use crate::report::number;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 70.0;
const TOP: f64 = 20.0;
const RIGHT: f64 = 20.0;
const BOTTOM: f64 = 50.0;
const COLOURS: [&str; 4] = ["#888888", "#0072b2", "#d55e00", "#009e73"];

/// One line of a plot: its label, and its points.
pub struct PlotLine<'a> {
    pub what: &'a str,
    pub points: Vec<(f64, f64)>,
}

/// An axis of a plot: its label, and its ticks. The scale is logarithmic between the first tick and the last.
pub struct PlotAxis<'a> {
    pub what: &'a str,
    pub ticks: Vec<(f64, String)>,
}

impl PlotAxis<'_> {
    fn at(&self, value: f64) -> f64 {
        let first = self.ticks[0].0.ln();
        let last = self.ticks[self.ticks.len() - 1].0.ln();
        ((value.ln() - first) / (last - first)).clamp(0.0, 1.0)
    }
}

/// Draws lines between two axes.
pub fn lines(x: &PlotAxis<'_>, y: &PlotAxis<'_>, lines: &[PlotLine<'_>]) -> String {
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n"
    );
    draw(&mut svg, x, y, lines).expect("a String");
    svg + "</svg>\n"
}

fn draw(
    svg: &mut String,
    x: &PlotAxis<'_>,
    y: &PlotAxis<'_>,
    lines: &[PlotLine<'_>],
) -> std::fmt::Result {
    let right = WIDTH - RIGHT;
    let bottom = HEIGHT - BOTTOM;
    let across = |value: f64| LEFT + x.at(value) * (right - LEFT);
    let up = |value: f64| bottom - y.at(value) * (bottom - TOP);
    for (value, label) in &x.ticks {
        let at = across(*value);
        writeln!(
            svg,
            "<path d=\"M{at:.1} {TOP}V{bottom}\" stroke=\"#dddddd\"/>"
        )?;
        writeln!(
            svg,
            "<text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{label}</text>",
            bottom + 16.0
        )?;
    }
    for (value, label) in &y.ticks {
        let at = up(*value);
        writeln!(
            svg,
            "<path d=\"M{LEFT} {at:.1}H{right}\" stroke=\"#dddddd\"/>"
        )?;
        writeln!(
            svg,
            "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
            LEFT - 6.0,
            at + 4.0
        )?;
    }
    let middle = f64::midpoint(LEFT, right);
    writeln!(
        svg,
        "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
        HEIGHT - 12.0,
        x.what
    )?;
    writeln!(
        svg,
        "<text x=\"14\" y=\"{0}\" text-anchor=\"middle\" transform=\"rotate(-90 14 {0})\">{1}</text>",
        f64::midpoint(TOP, bottom),
        y.what
    )?;
    for (n, line) in lines.iter().enumerate() {
        let colour = COLOURS[n % COLOURS.len()];
        let points: Vec<String> = line
            .points
            .iter()
            .map(|&(a, b)| format!("{:.1},{:.1}", across(a), up(b)))
            .collect();
        writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            points.join(" ")
        )?;
        let at = TOP + 18.0 + 18.0 * n as f64;
        writeln!(
            svg,
            "<text x=\"{}\" y=\"{at}\" fill=\"{colour}\">{}</text>",
            LEFT + 12.0,
            line.what
        )?;
    }
    Ok(())
}

/// Draws lateness by share of the messages, out to one in ten thousand.
pub fn distribution(late: &[(&str, &LatenessSamples)]) -> String {
    let shares = [
        (1.0, "0 %"),
        (2.0, "50 %"),
        (10.0, "90 %"),
        (100.0, "99 %"),
        (1e3, "99.9 %"),
        (1e4, "99.99 %"),
    ];
    let x = PlotAxis {
        what: "share of the messages that are at most so late",
        ticks: shares
            .iter()
            .map(|&(at, label)| (at, label.to_owned()))
            .collect(),
    };
    let most = late
        .iter()
        .map(|(_, late)| late.at(0.9999))
        .max()
        .unwrap_or(1);
    let y = decades("microseconds", 100.0, most.max(10_000) as f64);
    let curves: Vec<PlotLine<'_>> = late
        .iter()
        .map(|(what, late)| {
            let points = (0..=200).map(|n| {
                let one_in = 10_f64.powf(f64::from(n) / 50.0);
                (one_in, late.at(1.0 - 1.0 / one_in).max(1) as f64)
            });
            PlotLine {
                what,
                points: points.collect(),
            }
        })
        .collect();
    lines(&x, &y, &curves)
}

/// An axis of powers of ten from `least` until it holds `most`.
pub fn decades(what: &str, least: f64, most: f64) -> PlotAxis<'_> {
    let mut ticks = vec![(least, number(least))];
    let mut at = least;
    while at < most {
        at *= 10.0;
        ticks.push((at, number(at)));
    }
    PlotAxis { what, ticks }
}
