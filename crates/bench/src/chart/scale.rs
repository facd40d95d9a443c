//! The mapping of figures to positions on an axis, and its ticks.
//!
//! One type for linear axes, logarithmic axes and groups, so that all charts have one type of axes.

use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint};
use plotters::prelude::Ranged;
use std::ops::Range;

/// An axis of numbers.
#[derive(Debug, Clone)]
pub(super) struct Scale {
    low: f64,
    high: f64,
    /// Whether it is logarithmic.
    log: bool,
    /// The positions with a number.
    ticks: Vec<f64>,
    /// The positions with a fine line of the grid.
    fine: Vec<f64>,
}

/// The approximate number of ticks on a linear axis.
const STEPS: f64 = 6.0;
/// The least distance between two ticks, as a share of the axis.
const TICK_DISTANCE: f64 = 0.05;

impl Scale {
    /// An axis of measured values: it begins at 0, or at the power of ten below the smallest.
    pub(super) fn of_values(values: Vec<f64>, log: bool) -> Self {
        let counts = |value: &f64| value.is_finite() && (!log || *value > 0.0);
        let values: Vec<f64> = values.into_iter().filter(counts).collect();
        let most = values.iter().copied().reduce(f64::max);
        if !log {
            let most = most.filter(|most| *most > 0.0).unwrap_or(1.0);
            let step = round_up(most / STEPS);
            // Leaves room for a number above the highest bar.
            let high = step * (most * 1.06 / step).ceil();
            return Self { low: 0.0, high, log, ticks: multiples(step, high), fine: Vec::new() };
        }
        let least = values.iter().copied().reduce(f64::min).unwrap_or(1.0);
        let (low, high) = (power_below(least / 1.3), round_up(most.unwrap_or(1.0) * 1.3));
        let decades = (high / low).log10();
        let mut ticks = Vec::new();
        let mut fine = Vec::new();
        let mut decade = low;
        while decade <= high {
            for digit in 1..10 {
                let at = decade * f64::from(digit);
                let written = digit == 1 || (decades <= 2.5 && (digit == 2 || digit == 5));
                (if written { &mut ticks } else { &mut fine }).push(at);
            }
            decade *= 10.0;
        }
        for points in [&mut ticks, &mut fine] {
            points.retain(|at| *at <= high * 1.001);
        }
        Self { low, high, log, ticks, fine }
    }

    /// An axis of a varied quantity: it ends shortly after the points, and has a tick at each that is not too close to the
    /// one before.
    pub(super) fn of_points(points: impl Iterator<Item = f64>, log: bool) -> Self {
        let mut points: Vec<f64> = points.filter(|at| at.is_finite() && (!log || *at > 0.0)).collect();
        points.sort_unstable_by(f64::total_cmp);
        points.dedup();
        let (first, last) = (points.first().copied().unwrap_or(1.0), points.last().copied().unwrap_or(1.0));
        let mut scale = Self { low: first, high: last, log, ticks: Vec::new(), fine: Vec::new() };
        let room = if log { (last / first).log10().max(0.5) } else { (last - first).max(1.0) } * 0.04;
        (scale.low, scale.high) = if log {
            (first / 10f64.powf(room), last * 10f64.powf(room))
        } else {
            (first - room, last + room)
        };
        for at in points {
            let before = scale.ticks.last().map_or(-1.0, |before| scale.position(*before));
            if scale.position(at) - before >= TICK_DISTANCE {
                scale.ticks.push(at);
            }
        }
        scale
    }

    /// An axis of that many groups. The middle of each is half-way between two whole numbers.
    pub(super) fn of_groups(groups: usize) -> Self {
        #[allow(clippy::cast_precision_loss, reason = "some ten groups")]
        let high = groups.max(1) as f64;
        Self { low: 0.0, high, log: false, ticks: Vec::new(), fine: Vec::new() }
    }

    /// The position of a value, from 0 to 1.
    fn position(&self, value: f64) -> f64 {
        if self.log {
            (value / self.low).log10() / (self.high / self.low).log10()
        } else {
            (value - self.low) / (self.high - self.low)
        }
    }
}

impl Ranged for Scale {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (from, to): (i32, i32)) -> i32 {
        #[allow(clippy::cast_possible_truncation, reason = "pixels of one picture")]
        let along = (self.position(*value).clamp(0.0, 1.0) * f64::from(to - from)).round() as i32;
        from + along
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        if hint.weight().allow_light_points() { self.fine.clone() } else { self.ticks.clone() }
    }

    fn range(&self) -> Range<f64> {
        self.low..self.high
    }
}

/// A number at an axis or above a bar: three significant digits, in groups of three.
pub(super) fn number(value: f64) -> String {
    let digits = match value.abs() {
        0.0 => 0,
        size if size < 0.01 => 4,
        size if size < 0.1 => 3,
        size if size < 10.0 => 2,
        size if size < 100.0 => 1,
        _ => 0,
    };
    let text = format!("{value:.digits$}");
    let (whole, part) = text.split_once('.').unwrap_or((&text, ""));
    let part = part.trim_end_matches('0');
    let mut grouped = String::new();
    for (nth, digit) in whole.chars().enumerate() {
        if nth > 0 && (whole.len() - nth).is_multiple_of(3) {
            grouped.push(' ');
        }
        grouped.push(digit);
    }
    if part.is_empty() { grouped } else { format!("{grouped}.{part}") }
}

/// The greatest power of ten that is not greater.
fn power_below(value: f64) -> f64 {
    10f64.powf(value.log10().floor())
}

/// The smallest number of the form 1, 2 or 5 times a power of ten that is not smaller.
fn round_up(value: f64) -> f64 {
    let power = power_below(value);
    let factors = [1.0, 2.0, 5.0, 10.0];
    power * factors.into_iter().find(|factor| factor * power >= value * 0.9999).unwrap_or(10.0)
}

fn multiples(step: f64, until: f64) -> Vec<f64> {
    let nth = |n: u32| f64::from(n) * step;
    (0..100).map(nth).take_while(|at| *at <= until * 1.0001).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use plotters::coord::ranged1d::BoldPoints;

    fn ticks(scale: &Scale) -> String {
        scale.key_points(BoldPoints(0)).into_iter().map(number).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn numbers_have_three_significant_digits() {
        for (value, text) in [
            (0.0, "0"),
            (0.004, "0.004"),
            (0.05, "0.05"),
            (1.5, "1.5"),
            (2.0, "2"),
            (12.345, "12.3"),
            (123.4, "123"),
            (10_000.0, "10 000"),
            (1_234_567.0, "1 234 567"),
        ] {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn ticks_are_round_numbers() {
        let check = |values: &[f64], log, expected| {
            assert_eq!(ticks(&Scale::of_values(values.to_vec(), log)), expected);
        };
        check(&[0.3, 2.1], false, "0, 0.5, 1, 1.5, 2, 2.5");
        check(&[90.0], false, "0, 20, 40, 60, 80, 100");
        check(&[3.0, 40.0], true, "1, 2, 5, 10, 20, 50, 100");
        check(&[3.0, 40_000.0, f64::NAN, 0.0], true, "1, 10, 100, 1 000, 10 000, 100 000");
        check(&[], false, "0, 0.2, 0.4, 0.6, 0.8, 1, 1.2");
        check(&[], true, "0.1, 0.2, 0.5, 1, 2");
        let points = Scale::of_points([10_000.0, 2.0, 8.0, 9_000.0].into_iter(), true);
        assert_eq!(ticks(&points), "2, 8, 9 000");
    }

    #[test]
    fn equal_factors_are_equally_long_on_a_logarithmic_axis() {
        let scale = Scale::of_values(vec![2.0, 700.0], true);
        let at = |value| scale.map(&value, (0, 3000));
        assert_eq!((at(1.0), at(10.0), at(100.0), at(1000.0)), (0, 1000, 2000, 3000));
        assert_eq!(at(0.0), 0, "a value that is not positive is at the edge");
    }
}
