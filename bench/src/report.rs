//! Numbers to tables and charts.

use std::fmt::Write;

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
