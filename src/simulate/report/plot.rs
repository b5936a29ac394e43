//! Small drawings as SVG: axes, points, lines, areas.
//!
//! Must not know what it draws.

/// One drawing with its axes.
#[derive(Debug)]
pub(super) struct Plot {
    body: String,
    /// Where words are: left end, base line, width.
    texts: Vec<(f64, f64, f64)>,
    x: Axis,
    y: Axis,
    width: f64,
    height: f64,
}

/// An axis: its range and marks.
#[derive(Debug, Clone)]
pub(super) struct Axis {
    pub(super) from: f64,
    pub(super) to: f64,
    /// What is drawn at which value.
    pub(super) marks: Vec<(f64, String)>,
    pub(super) label: &'static str,
}

const LEFT: f64 = 52.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 36.0;
/// Width of a letter and height of a line of words.
const LETTER: f64 = 6.6;
const LINE: f64 = 12.0;

impl Axis {
    /// From 0 to a round number above `most`, with some five marks.
    pub(super) fn up_to(most: f64, label: &'static str) -> Axis {
        let most = if most > 0.0 { most } else { 1.0 };
        let raw = most / 5.0;
        let power = 10_f64.powf(raw.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].iter().map(|n| n * power).find(|step| *step >= raw);
        let step = step.unwrap_or(raw);
        let n = super::super::number::ceil_index(most / step).max(1);
        let marks = (0..=n).map(|i| i as f64 * step).map(|v| (v, number(v))).collect();
        Axis { from: 0.0, to: n as f64 * step, marks, label }
    }
}

/// A number as short as it is read.
pub(super) fn number(value: f64) -> String {
    let digits = if value.abs() >= 10.0 || value.fract().abs() < 1e-9 { 0 } else { 2 };
    format!("{value:.digits$}")
}

impl Plot {
    pub(super) fn new(width: f64, height: f64, x: Axis, y: Axis) -> Plot {
        let mut plot = Plot { body: String::new(), texts: Vec::new(), x, y, width, height };
        plot.axes();
        plot
    }

    fn axes(&mut self) {
        let (left, right) = (LEFT, self.width - RIGHT);
        let (top, bottom) = (TOP, self.height - BOTTOM);
        for (value, text) in self.y.marks.clone() {
            let y = self.y_of(value);
            self.add(format_args!(
                "<line class='grid' x1='{left}' x2='{right}' y1='{y:.1}' y2='{y:.1}'/>\
                 <text class='mark' x='{:.1}' y='{:.1}' text-anchor='end'>{text}</text>",
                left - 6.0,
                y + 4.0
            ));
        }
        for (value, text) in self.x.marks.clone() {
            let x = self.x_of(value);
            self.add(format_args!(
                "<line class='grid' x1='{x:.1}' x2='{x:.1}' y1='{top}' y2='{bottom}'/>\
                 <text class='mark' x='{x:.1}' y='{:.1}' text-anchor='middle'>{text}</text>",
                bottom + 15.0
            ));
        }
        let (x, y) = (self.x.label, self.y.label);
        self.add(format_args!(
            "<text class='label' x='{right}' y='{:.1}' text-anchor='end'>{x}</text>\
             <text class='label' x='{:.1}' y='{:.1}'>{y}</text>",
            self.height - 4.0,
            left + 6.0,
            TOP + 9.0
        ));
    }

    fn add(&mut self, text: std::fmt::Arguments<'_>) {
        self.body.push_str(&text.to_string());
    }

    fn x_of(&self, value: f64) -> f64 {
        let share = ((value - self.x.from) / (self.x.to - self.x.from)).clamp(0.0, 1.0);
        LEFT + share * (self.width - LEFT - RIGHT)
    }

    fn y_of(&self, value: f64) -> f64 {
        let share = ((value - self.y.from) / (self.y.to - self.y.from)).clamp(0.0, 1.0);
        self.height - BOTTOM - share * (self.height - TOP - BOTTOM)
    }

    /// A point that says what it is when pointed at.
    pub(super) fn point(&mut self, at: (f64, f64), radius: f64, color: &str, title: &str) {
        let (x, y) = (self.x_of(at.0), self.y_of(at.1));
        self.add(format_args!(
            "<circle cx='{x:.1}' cy='{y:.1}' r='{radius}' fill='{color}'><title>{title}</title></circle>"
        ));
    }

    /// A line; `style` is more of its attributes.
    pub(super) fn line(&mut self, points: &[(f64, f64)], color: &str, style: &str) {
        let path = self.path(points);
        self.add(format_args!("<path d='{path}' fill='none' stroke='{color}' {style}/>"));
    }

    /// A line that keeps each value until the next point.
    pub(super) fn steps(&mut self, points: &[(f64, f64)], color: &str, style: &str) {
        let corners = points.windows(2).flat_map(|pair| [pair[0], (pair[1].0, pair[0].1)]);
        let stepped: Vec<(f64, f64)> = corners.chain(points.last().copied()).collect();
        self.line(&stepped, color, style);
    }

    /// The area below a line.
    pub(super) fn area(&mut self, points: &[(f64, f64)], color: &str) {
        let (Some(first), Some(last)) = (points.first(), points.last()) else { return };
        let path = self.path(points);
        let base = self.y_of(self.y.from);
        let (from, to) = (self.x_of(first.0), self.x_of(last.0));
        self.add(format_args!(
            "<path d='{path}L{to:.1},{base:.1}L{from:.1},{base:.1}Z' fill='{color}'/>"
        ));
    }

    /// A strip over the whole width.
    pub(super) fn band(&mut self, (from, to): (f64, f64), color: &str) {
        let (top, bottom) = (self.y_of(to), self.y_of(from));
        let (width, height) = (self.width - LEFT - RIGHT, bottom - top);
        self.add(format_args!(
            "<rect x='{LEFT}' y='{top:.1}' width='{width:.1}' height='{height:.1}' fill='{color}'/>"
        ));
    }

    /// Words beside a place, unless they would lie on others; free of what HTML would take amiss.
    pub(super) fn text(&mut self, at: (f64, f64), words: &str, color: &str) {
        let width = LETTER * words.len() as f64;
        let right = self.x_of(at.0) + 9.0;
        // To the left where there is no room to the right.
        let x = if right + width > self.width { self.x_of(at.0) - 9.0 - width } else { right };
        let y = (self.y_of(at.1) - 6.0).max(TOP + LINE);
        let is_free = |&(other_x, other_y, other_width): &(f64, f64, f64)| {
            (y - other_y).abs() > LINE || x > other_x + other_width || other_x > x + width
        };
        if !self.texts.iter().all(is_free) {
            return;
        }
        self.texts.push((x, y, width));
        self.add(format_args!(
            "<text class='name' x='{x:.1}' y='{y:.1}' fill='{color}'>{words}</text>"
        ));
    }

    fn path(&self, points: &[(f64, f64)]) -> String {
        let mut path = String::new();
        for (index, &(x, y)) in points.iter().enumerate() {
            let command = if index == 0 { 'M' } else { 'L' };
            path.push_str(&format!("{command}{:.1},{:.1}", self.x_of(x), self.y_of(y)));
        }
        path
    }

    /// The drawing, with words for those who cannot see it.
    pub(super) fn svg(&self, description: &str) -> String {
        let Plot { body, width, height, .. } = self;
        format!(
            "<svg viewBox='0 0 {width} {height}' role='img' aria-label='{description}'>{body}</svg>"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_end_at_a_round_number_above_the_most() {
        let axis = Axis::up_to(173.0, "");
        assert!((axis.to - 200.0).abs() < 1e-9);
        let marks: Vec<&str> = axis.marks.iter().map(|(_, text)| text.as_str()).collect();
        assert_eq!(marks, ["0", "50", "100", "150", "200"]);
        assert!((Axis::up_to(0.0, "").to - 1.0).abs() < 1e-9);
    }
}
