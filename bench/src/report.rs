//! Numbers to tables and charts.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use crate::Outcome;
use crate::tools::output;

/// A figure that was measured several times.
#[derive(Clone, Default)]
pub(crate) struct Samples(pub(crate) Vec<f64>);

impl Samples {
    pub(crate) fn push(&mut self, sample: f64) {
        self.0.push(sample);
    }

    /// Each divided by its partner of the same round.
    pub(crate) fn ratio_to(&self, other: &Self) -> Self {
        Self(self.0.iter().zip(&other.0).map(|(one, other)| one / other).collect())
    }

    pub(crate) fn median(&self) -> f64 {
        self.at(0.5)
    }

    /// The value below which this share of the samples lies.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "a place in a list of samples"
    )]
    pub(crate) fn at(&self, share: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let place = (share * (sorted.len().saturating_sub(1)) as f64).round() as usize;
        sorted.get(place).copied().unwrap_or(f64::NAN)
    }

    /// The median, with the least and the greatest.
    pub(crate) fn spread(&self) -> String {
        format!("{:.2} ({:.2}–{:.2})", self.median(), self.at(0.0), self.at(1.0))
    }
}

/// A bar chart: a row a label, with the spread of the samples and a mark where the bar should at least end.
pub(crate) fn chart(title: &str, rows: &[(&str, Samples, f64)]) -> String {
    let greatest = rows.iter().map(|(_, samples, bar)| samples.at(1.0).max(*bar)).fold(1.0, f64::max);
    let scale = 400.0 / greatest;
    let height = 60 + rows.len() * 34;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 720 {height}\" font-family=\"sans-serif\" \
         font-size=\"13\">\n<rect width=\"720\" height=\"{height}\" fill=\"#ffffff\"/>\n\
         <text x=\"16\" y=\"26\" font-size=\"15\">{title}</text>\n"
    );
    for (place, (label, samples, bar)) in rows.iter().enumerate() {
        let y = 46 + place * 34;
        let (median, least, most) =
            (samples.median() * scale, samples.at(0.0) * scale, samples.at(1.0) * scale);
        let (bar_x, label_x) = (232.0 + bar * scale, 240.0 + most);
        let _ = write!(
            svg,
            "<text x=\"16\" y=\"{}\">{label}</text>\n\
             <rect x=\"232\" y=\"{y}\" width=\"{median:.1}\" height=\"20\" fill=\"#2f6f8f\"/>\n\
             <line x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{}\" y2=\"{}\" stroke=\"#1b2a33\" stroke-width=\"2\"/>\n\
             <line x1=\"{bar_x:.1}\" x2=\"{bar_x:.1}\" y1=\"{}\" y2=\"{}\" stroke=\"#c0392b\" stroke-width=\"2\" \
             stroke-dasharray=\"3 2\"/>\n<text x=\"{label_x:.1}\" y=\"{}\">{:.2}</text>\n",
            y + 15,
            232.0 + least,
            232.0 + most,
            y + 10,
            y + 10,
            y.saturating_sub(3),
            y + 23,
            y + 15,
            samples.median(),
        );
    }
    svg + "</svg>\n"
}

/// The colours of a chart, by day and by night.
const STYLE: &str = "\
text { fill: #1f2937; font: 13px system-ui, sans-serif }
.title { font-weight: 600; font-size: 15px }
.small { fill: #5b6472; font-size: 12px }
.page { fill: #ffffff }
.grid { stroke: #d5dae1 }
.line { fill: none; stroke-width: 2.5; stroke-linejoin: round }
.c0 { stroke: #2f6fb0 } .c1 { stroke: #2e8b57 } .c2 { stroke: #c77700 } .c3 { stroke: #7c4dbd } .c4 { stroke: #d93025 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .small { fill: #9aa5b1 } .page { fill: #12171e } .grid { stroke: #2c343d }
  .c0 { stroke: #7fb4ea } .c1 { stroke: #3fa76d } .c2 { stroke: #e8a33d } .c3 { stroke: #b794f0 } .c4 { stroke: #f0655b }
}";

/// One line of a chart.
pub(crate) struct Line<'a> {
    pub(crate) name: &'a str,
    /// A value for each place.
    pub(crate) values: Vec<f64>,
}

/// A chart of lines over places that are equally far from each other, from 0 up.
pub(crate) fn lines(title: &str, places: &[String], all: &[Line<'_>]) -> String {
    const LEFT: f64 = 64.0;
    const WIDTH: f64 = 480.0;
    const TOP: f64 = 50.0;
    const HEIGHT: f64 = 220.0;
    let greatest = all.iter().flat_map(|line| &line.values).copied().fold(f64::MIN_POSITIVE, f64::max);
    let step = step(greatest);
    let top = (greatest / step).ceil() * step;
    let x = |place: usize| LEFT + WIDTH * index(place) / index(places.len().saturating_sub(1).max(1));
    let y = |value: f64| TOP + HEIGHT * (1.0 - value / top);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 860 310\" width=\"860\" height=\"310\" role=\"img\" \
         aria-label=\"{title}\">\n<style>\n{STYLE}\n</style>\n<rect class=\"page\" width=\"860\" height=\"310\" rx=\"10\"/>\n\
         <text class=\"title\" x=\"16\" y=\"26\">{title}</text>\n"
    );
    let mut tick = 0.0;
    while tick <= top * 1.001 {
        let (y, label) = (y(tick), if step < 1.0 { format!("{tick:.1}") } else { format!("{tick:.0}") });
        let _ = writeln!(
            svg,
            "<path class=\"grid\" d=\"M{LEFT} {y:.1}h{WIDTH}\"/>\
             <text class=\"small\" x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"end\">{label}</text>",
            LEFT - 8.0,
            y + 4.0,
        );
        tick += step;
    }
    for (place, name) in places.iter().enumerate() {
        let (x, y) = (x(place), TOP + HEIGHT + 20.0);
        let _ = writeln!(
            svg,
            "<text class=\"small\" x=\"{x:.0}\" y=\"{y:.0}\" text-anchor=\"middle\">{name}</text>"
        );
    }
    for (number, line) in all.iter().enumerate() {
        let points: Vec<_> = line
            .values
            .iter()
            .enumerate()
            .map(|(place, value)| format!("{:.1},{:.1}", x(place), y(*value)))
            .collect();
        let legend = TOP + 10.0 + 22.0 * index(number);
        let _ = writeln!(
            svg,
            "<polyline class=\"line c{number}\" points=\"{}\"/><path class=\"line c{number}\" d=\"M{:.0} {:.0}h18\"/>\
             <text class=\"small\" x=\"{:.0}\" y=\"{legend:.0}\">{}</text>",
            points.join(" "),
            LEFT + WIDTH + 30.0,
            legend - 4.0,
            LEFT + WIDTH + 56.0,
            line.name,
        );
    }
    svg + "</svg>\n"
}

/// A round number of which three to seven make the greatest.
fn step(greatest: f64) -> f64 {
    let magnitude = 10_f64.powf(greatest.log10().floor());
    [0.2, 0.5, 1.0, 2.0]
        .map(|step| step * magnitude)
        .into_iter()
        .find(|step| greatest / step <= 7.0)
        .unwrap_or(magnitude)
}

fn index(place: usize) -> f64 {
    f64::from(u32::try_from(place).unwrap_or(u32::MAX))
}

/// A number as people write it: 1,000,000.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    groups.join(",")
}

/// What was measured on.
pub(crate) fn machine() -> Outcome<String> {
    let said = output("lscpu", &[])?;
    let model = said.lines().find_map(|line| line.strip_prefix("Model name:")).unwrap_or("?").trim();
    Ok(format!("{} cores of {model}", std::thread::available_parallelism()?))
}

/// Puts figures in the place that a page has for them.
pub(crate) fn replace_measured(page: &Path, figures: &str) -> Outcome {
    let text = fs::read_to_string(page)?;
    let (before, after) = text.split_once("<!-- measured -->").ok_or("no place for the figures")?;
    let (_, after) = after.split_once("<!-- /measured -->").ok_or("no end of the figures")?;
    Ok(fs::write(page, format!("{before}<!-- measured -->\n\n{figures}\n<!-- /measured -->{after}"))?)
}
