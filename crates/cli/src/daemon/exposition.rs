//! The text format of Prometheus.

use std::fmt::Write;

/// The type of its content.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What Prometheus knows of a metric.
#[derive(Debug)]
pub(crate) struct Metric {
    pub(crate) name: &'static str,
    pub(crate) kind: MetricKind,
    pub(crate) help: &'static str,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum MetricKind {
    Counter,
    Gauge,
    Histogram,
}

impl MetricKind {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// A text of metrics and their samples.
#[derive(Debug, Default)]
pub(crate) struct Exposition(String);

impl Exposition {
    /// Begins a metric. Its samples follow.
    pub(crate) fn metric(&mut self, metric: &Metric) -> Samples<'_> {
        let Metric { name, kind, help } = metric;
        self.write(format_args!("# HELP {name} {help}\n# TYPE {name} {}\n", kind.as_str()));
        Samples { text: self, name }
    }

    pub(crate) fn into_text(self) -> String {
        self.0
    }

    fn write(&mut self, text: std::fmt::Arguments<'_>) {
        self.0.write_fmt(text).expect("writing to a string cannot fail");
    }
}

/// The samples of one metric.
pub(crate) struct Samples<'a> {
    text: &'a mut Exposition,
    name: &'static str,
}

impl Samples<'_> {
    /// Adds a sample.
    pub(crate) fn add(&mut self, labels: &[(&str, &str)], value: f64) {
        self.add_part("", labels, value);
    }

    /// Adds a sample without labels, if its value is known.
    pub(crate) fn add_if_known(&mut self, value: Option<f64>) {
        if let Some(value) = value {
            self.add(&[], value);
        }
    }

    /// Adds a histogram without labels.
    pub(crate) fn add_histogram(&mut self, histogram: &Histogram) {
        let mut count = 0;
        for (bound, here) in histogram.bounds.iter().zip(&histogram.counts) {
            count += here;
            self.add_part("_bucket", &[("le", &bound.to_string())], float(count));
        }
        self.add_part("_bucket", &[("le", "+Inf")], float(histogram.count));
        self.add_part("_sum", &[], histogram.sum);
        self.add_part("_count", &[], float(histogram.count));
    }

    fn add_part(&mut self, part: &str, labels: &[(&str, &str)], value: f64) {
        let name = self.name;
        self.text.write(format_args!("{name}{part}"));
        for (at, (label, value)) in labels.iter().enumerate() {
            let before = if at == 0 { '{' } else { ',' };
            self.text.write(format_args!("{before}{label}=\"{}\"", escaped(value)));
        }
        let end = if labels.is_empty() { "" } else { "}" };
        self.text.write(format_args!("{end} {value}\n"));
    }
}

/// Counts of values up to some bounds.
#[derive(Debug)]
pub(crate) struct Histogram {
    bounds: &'static [f64],
    counts: Vec<u64>,
    count: u64,
    sum: f64,
}

impl Histogram {
    pub(crate) fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, counts: vec![0; bounds.len()], count: 0, sum: 0.0 }
    }

    pub(crate) fn record(&mut self, value: f64) {
        let bucket = self.bounds.iter().position(|bound| value <= *bound);
        if let Some(count) = bucket.and_then(|bucket| self.counts.get_mut(bucket)) {
            *count += 1;
        }
        self.count += 1;
        self.sum += value;
    }
}

/// A count as a value. From 2^53 on it is rounded.
#[expect(clippy::cast_precision_loss, reason = "values of Prometheus are floats")]
pub(crate) const fn float(count: u64) -> f64 {
    count as f64
}

/// The value of a label between quotes.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped_and_buckets_are_cumulative() {
        let mut text = Exposition::default();
        let held = Metric { name: "held", kind: MetricKind::Gauge, help: "Locks." };
        let mut samples = text.metric(&held);
        samples.add(&[("class", "a\"b\\c\nd"), ("kind", "größe")], 2.0);
        samples.add(&[], 0.25);
        let mut times = Histogram::new(&[0.5, 1.0]);
        for time in [0.5, 0.75, 3.0] {
            times.record(time);
        }
        let took = Metric { name: "took", kind: MetricKind::Histogram, help: "Times." };
        text.metric(&took).add_histogram(&times);
        let expected = "\
# HELP held Locks.
# TYPE held gauge
held{class=\"a\\\"b\\\\c\\nd\",kind=\"größe\"} 2
held 0.25
# HELP took Times.
# TYPE took histogram
took_bucket{le=\"0.5\"} 1
took_bucket{le=\"1\"} 2
took_bucket{le=\"+Inf\"} 3
took_sum 4.25
took_count 3
";
        assert_eq!(text.into_text(), expected);
    }
}
