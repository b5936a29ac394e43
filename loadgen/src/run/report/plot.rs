//! Line plots as SVG, to be written into a page.
//!
//! Must not know what is plotted.

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 220.0;
const LEFT: f64 = 58.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 34.0;
/// Colours that the colour-blind tell apart (Okabe and Ito, 2008).
const COLOURS: [&str; 5] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#999999"];

/// A line; gaps where there is no value.
pub(super) struct Line<'a> {
    pub(super) name: &'a str,
    pub(super) points: Vec<(f64, Option<f64>)>,
    /// Holds its value until the next point.
    pub(super) is_step: bool,
    /// Lets those below it be seen where they are the same.
    pub(super) is_dashed: bool,
}

/// A plot.
pub(super) struct Plot<'a> {
    pub(super) title: &'a str,
    pub(super) x_label: &'a str,
    pub(super) lines: Vec<Line<'a>>,
    /// Whether x is in powers of ten.
    pub(super) is_log: bool,
}

impl Plot<'_> {
    /// The plot with its title and legend; empty if there is nothing to show.
    pub(super) fn render(&self) -> String {
        let shown = self.lines.iter().flat_map(|line| &line.points);
        let shown: Vec<(f64, f64)> = shown
            .filter_map(|(x, y)| Some((*x, (*y)?)))
            .filter(|(x, y)| x.is_finite() && y.is_finite() && (!self.is_log || *x > 0.0))
            .collect();
        if shown.is_empty() {
            return String::new();
        }
        let (mut least, mut most, mut top) = (f64::INFINITY, f64::NEG_INFINITY, 0.0_f64);
        for (x, y) in shown {
            (least, most, top) = (least.min(x), most.max(x), top.max(y));
        }
        if self.is_log {
            (least, most) =
                (least.log10().floor(), most.log10().ceil().max(least.log10().floor() + 1.0));
        } else {
            (least, most) = (least.min(0.0), most.max(least + 1e-9));
        }
        let step = tick_step(top.max(1e-9));
        let top = (top / step).ceil().max(1.0) * step;
        let place_x = |x: f64| {
            let x = if self.is_log { x.max(1e-12).log10() } else { x };
            LEFT + (x - least) / (most - least) * (WIDTH - LEFT - RIGHT)
        };
        let place_y = |y: f64| HEIGHT - BOTTOM - y / top * (HEIGHT - TOP - BOTTOM);
        let mut svg = format!(
            "<figure><figcaption>{}</figcaption><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
             aria-label=\"{}\">",
            self.title, self.title
        );
        let mut y = 0.0;
        while y <= top * 1.001 {
            let at = place_y(y);
            svg.push_str(&format!(
                "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
                 <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                WIDTH - RIGHT,
                LEFT - 6.0,
                at + 4.0,
                tick(y)
            ));
            y += step;
        }
        for x in self.x_ticks(least, most) {
            svg.push_str(&format!(
                "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                place_x(x),
                HEIGHT - BOTTOM + 16.0,
                tick(x)
            ));
        }
        svg.push_str(&format!(
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>",
            WIDTH - RIGHT,
            HEIGHT - 4.0,
            self.x_label
        ));
        let mut legend = String::new();
        for (line, colour) in self.lines.iter().zip(COLOURS.iter().cycle()) {
            let path = path(line, &place_x, &place_y);
            if path.is_empty() {
                continue;
            }
            let (dash, mark) = match line.is_dashed {
                true => (" stroke-dasharray=\"5 5\"", "┅"),
                false => ("", "■"),
            };
            svg.push_str(&format!("<path d=\"{path}\" stroke=\"{colour}\"{dash}/>"));
            let name = line.name;
            legend.push_str(&format!("<span style=\"color:{colour}\">{mark}</span> {name} "));
        }
        svg.push_str(&format!("</svg><div>{legend}</div></figure>\n"));
        svg
    }

    fn x_ticks(&self, least: f64, most: f64) -> Vec<f64> {
        if self.is_log {
            let mut ticks = vec![];
            let mut power = least;
            while power <= most + 1e-9 {
                ticks.push(10_f64.powf(power));
                power += 1.0;
            }
            return ticks;
        }
        let step = tick_step(most - least);
        let mut ticks = vec![];
        let mut x = (least / step).ceil() * step;
        while x <= most {
            ticks.push(x);
            x += step;
        }
        ticks
    }
}

fn path(line: &Line<'_>, place_x: &impl Fn(f64) -> f64, place_y: &impl Fn(f64) -> f64) -> String {
    let mut path = String::new();
    let mut last_y: Option<f64> = None;
    for (x, y) in &line.points {
        let Some(y) = y.filter(|y| y.is_finite()) else {
            last_y = None;
            continue;
        };
        let (x, y) = (place_x(*x), place_y(y));
        match last_y {
            // A point between two gaps is a dot.
            None => path.push_str(&format!("M{x:.1} {y:.1}h0")),
            Some(last_y) => {
                if line.is_step {
                    path.push_str(&format!("L{x:.1} {last_y:.1}"));
                }
                path.push_str(&format!("L{x:.1} {y:.1}"));
            }
        }
        last_y = Some(y);
    }
    path
}

/// A tick's number without digits that say nothing.
fn tick(number: f64) -> String {
    let text = format!("{number:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A step of 1, 2 or 5 times a power of ten that divides a range in four to ten.
fn tick_step(range: f64) -> f64 {
    let power = 10_f64.powf((range / 5.0).log10().floor());
    let left = range / 5.0 / power;
    power
        * if left > 5.0 {
            10.0
        } else if left > 2.0 {
            5.0
        } else if left > 1.0 {
            2.0
        } else {
            1.0
        }
}
