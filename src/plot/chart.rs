//! Charts of curves with bands, a legend and reference lines, as SVG or PNG.

use super::Band;
use super::error::{ChartError, drawing_error};
use super::legend::{self, Legend};
use super::style::{FONT_FAMILY, Stroke, stroke};
use crate::disk;
use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::register_font;
use std::io;
use std::ops::Range;
use std::path::Path;

/// Size of a picture in pixels, without a legend below the plot.
const PICTURE_SIZE: (u32, u32) = (960, 560);
/// Font for measuring text and for drawing it in a PNG; an SVG names a font family of its viewer.
const FONT: &[u8] = include_bytes!("../../assets/font/DejaVuSans-ascii.ttf");
/// The colour of reference lines.
const GREY: RGBColor = RGBColor(110, 110, 110);

/// A curve with its name in the legend.
#[derive(Clone, Debug)]
pub struct Line {
    /// Name in the legend.
    pub name: String,
    /// The curve.
    pub band: Band,
}

/// A chart of lines over one axis.
#[derive(Clone, Debug)]
pub struct Chart {
    pub title: String,
    /// The name of the horizontal axis.
    pub x_label: String,
    /// The name of the vertical axis.
    pub y_label: String,
    /// The curves.
    pub lines: Vec<Line>,
    /// Values of reference players, each with the player's name.
    pub reference_values: Vec<(String, f64)>,
}

impl Chart {
    /// Draws the chart into a file, whose name ends in `.svg` or `.png`.
    ///
    /// # Errors
    /// [`ChartError`] if it ends otherwise, if there is nothing to draw, or if it cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), ChartError> {
        let extension = path.extension().and_then(|end| end.to_str()).unwrap_or_default();
        let bytes = match &*extension.to_ascii_lowercase() {
            "svg" => self.to_svg()?.into_bytes(),
            "png" => self.to_png()?,
            _ => return Err(ChartError::Format(path.to_path_buf())),
        };
        disk::write_output(path, |file| disk::write(file, &bytes))
            .map_err(|error| ChartError::File(path.to_path_buf(), error))
    }

    /// The chart as SVG.
    ///
    /// # Errors
    /// If there is nothing to draw.
    pub fn to_svg(&self) -> Result<String, ChartError> {
        let (mut text, (legend, size)) = (String::new(), self.lay_out_legend()?);
        self.draw(legend, SVGBackend::with_string(&mut text, size).into_drawing_area())?;
        Ok(text)
    }

    /// The chart as PNG.
    ///
    /// # Errors
    /// If there is nothing to draw.
    pub fn to_png(&self) -> Result<Vec<u8>, ChartError> {
        let (legend, (width, height)) = self.lay_out_legend()?;
        let mut pixels = vec![0; 3 * (width * height) as usize];
        let backend = BitMapBackend::with_buffer(&mut pixels, (width, height));
        self.draw(legend, backend.into_drawing_area())?;
        let picture = image::RgbImage::from_raw(width, height, pixels).expect("the sizes agree");
        let mut bytes = io::Cursor::new(Vec::new());
        picture.write_to(&mut bytes, image::ImageFormat::Png).map_err(drawing_error)?;
        Ok(bytes.into_inner())
    }

    /// The names of the curves.
    fn names(&self) -> Vec<&str> {
        self.lines.iter().map(|line| line.name.as_str()).collect()
    }

    /// Lays out the legend below the plot, if it is there. Also returns the size of the picture in pixels.
    fn lay_out_legend(&self) -> Result<(Option<Legend>, (u32, u32)), ChartError> {
        register_font(FONT_FAMILY, FontStyle::Normal, FONT)
            .map_err(|_| ChartError::Drawing("the font is damaged".to_string()))?;
        let (width, plot_height) = PICTURE_SIZE;
        let legend = Legend::lay_out(&self.names(), width)?;
        let height = plot_height + legend.as_ref().map_or(0, Legend::height);
        Ok((legend, (width, height)))
    }

    /// Draws the axes, the reference lines and the curves, with the legend below them or, without one, names in the
    /// chart.
    fn draw<B: DrawingBackend>(
        &self,
        legend: Option<Legend>,
        area: DrawingArea<B, Shift>,
    ) -> Result<(), ChartError> {
        let bands = || self.lines.iter().map(|line| &line.band);
        let x = extent(bands().flat_map(|band| &band.x).copied());
        let values =
            bands().flat_map(|band| band.interval.iter().flatten().chain(&band.mean)).copied();
        let y = extent(values.chain(self.reference_values.iter().map(|(_, value)| *value)));
        let (Some(x), Some(y)) = (x, y) else { return Err(ChartError::Empty) };
        let margin = 0.04 * (y.end - y.start);
        area.fill(&WHITE).map_err(drawing_error)?;
        let (plot_area, legend_area) = area.split_vertically(PICTURE_SIZE.1);
        let mut chart = ChartBuilder::on(&plot_area)
            .caption(&self.title, (FONT_FAMILY, 22))
            .margin(14)
            // Room for half of the last label.
            .margin_right(28)
            .x_label_area_size(46)
            .y_label_area_size(64)
            .build_cartesian_2d(x.clone(), y.start - margin..y.end + margin)
            .map_err(drawing_error)?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(BLACK.mix(0.1))
            .x_desc(&self.x_label)
            .y_desc(&self.y_label)
            .x_label_formatter(&|x| format_axis_label(*x))
            .y_label_formatter(&|y| format_axis_label(*y))
            .label_style((FONT_FAMILY, 14))
            .axis_desc_style((FONT_FAMILY, 16))
            .draw()
            .map_err(drawing_error)?;
        for (name, value) in &self.reference_values {
            draw_reference(&mut chart, &x, name, *value)?;
        }
        for (i, line) in self.lines.iter().enumerate() {
            draw_curve(&mut chart, i, &line.band)?;
        }
        match legend {
            Some(legend) => legend.draw(&legend_area)?,
            None => draw_legend(&mut chart, &legend::list_entries(&self.names()))?,
        }
        area.present().map_err(drawing_error)
    }
}

/// Plotting area of a chart, between its axes.
type PlottingArea<'a, B> = ChartContext<'a, B, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// Draws the value of a reference player across the horizontal axis.
fn draw_reference<B: DrawingBackend>(
    chart: &mut PlottingArea<B>,
    x: &Range<f64>,
    name: &str,
    value: f64,
) -> Result<(), ChartError> {
    let ends = [(x.start, value), (x.end, value)];
    let line = DashedLineSeries::new(ends, 5, 4, GREY.stroke_width(1));
    chart.draw_series(line).map_err(drawing_error)?;
    let text = format!("{name} {}", format_axis_label(value));
    let position = (x.start + 0.005 * (x.end - x.start), value);
    let style = (FONT_FAMILY, 12).into_font().color(&GREY);
    // Slightly below its line.
    let label = EmptyElement::at(position) + Text::new(text, (0, 3), style);
    chart.draw_series([label]).map_err(drawing_error)?;
    Ok(())
}

/// Draws the curve with this index and its interval, or a single point as a dot.
fn draw_curve<B: DrawingBackend>(
    chart: &mut PlottingArea<B>,
    index: usize,
    band: &Band,
) -> Result<(), ChartError> {
    let Stroke { style, dash, gap } = stroke(index);
    let colour = style.color;
    let Band { x, mean, interval } = band;
    let side = |side: usize| x.iter().zip(interval).map(move |(x, bounds)| (*x, bounds[side]));
    let back = side(1).collect::<Vec<_>>().into_iter().rev();
    let outline: Vec<(f64, f64)> = side(0).chain(back).collect();
    if !outline.is_empty() {
        chart.draw_series([Polygon::new(outline, colour.mix(0.18))]).map_err(drawing_error)?;
    }
    let points: Vec<(f64, f64)> = x.iter().copied().zip(mean.iter().copied()).collect();
    if let [point] = points[..] {
        chart.draw_series([Circle::new(point, 4, colour.filled())]).map_err(drawing_error)?;
    }
    let curve = DashedLineSeries::new(points, dash, gap, style);
    chart.draw_series(curve).map_err(drawing_error)?;
    Ok(())
}

/// Draws the legend of curves with these names inside the plot.
fn draw_legend<'a, B: DrawingBackend + 'a>(
    chart: &mut PlottingArea<'a, B>,
    names: &[String],
) -> Result<(), ChartError> {
    for (i, name) in names.iter().enumerate() {
        let nothing = std::iter::empty::<PathElement<(f64, f64)>>();
        let entry = chart.draw_series(nothing).map_err(drawing_error)?;
        entry.label(name).legend(move |position| legend::curve_sample(i, position));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.2))
        .label_font((FONT_FAMILY, legend::TEXT_SIZE))
        .draw()
        .map_err(drawing_error)
}

/// The smallest range with all finite values, widened on each side if they are equal, so that the labels of the axis
/// differ; `None` without finite values.
pub(crate) fn extent(values: impl Iterator<Item = f64>) -> Option<Range<f64>> {
    let ends = values.filter(|value| value.is_finite()).map(|value| (value, value));
    let (low, high) = ends.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))?;
    let padding = if low < high { 0.0 } else { 0.5 * low.abs().max(1.0) };
    Some(low - padding..high + padding)
}

/// Formats a label of an axis with at most four digits and a unit prefix for large numbers.
fn format_axis_label(value: f64) -> String {
    // The rounded value decides.
    let (scaled, unit) = match value.abs() {
        9.9995e8.. => (value / 1e9, "G"),
        9.9995e5.. => (value / 1e6, "M"),
        9999.5.. => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let decimals = match scaled.abs() {
        1e3.. => 1.0,
        1e2.. => 1e1,
        1e1.. => 1e2,
        _ => 1e3,
    };
    let rounded = (scaled * decimals).round() / decimals;
    format!("{}{unit}", if rounded == 0.0 { 0.0 } else { rounded })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::aggregate;

    fn chart() -> Chart {
        let curves = [vec![(0.0, 0.0), (1e6, 4.0)], vec![(0.0, 1.0), (1e6, 5.0)]];
        let line = Line { name: "catch <3".to_string(), band: aggregate(&curves) };
        let reference_values = vec![("optimum".to_string(), 6.0)];
        let [x_label, y_label] = ["env_steps", "score"].map(String::from);
        Chart { title: "catch".to_string(), x_label, y_label, lines: vec![line], reference_values }
    }

    #[test]
    fn a_chart_is_a_well_formed_picture_and_the_same_each_time() {
        let svg = chart().to_svg().unwrap();
        assert!(svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"), "{svg}");
        for words in ["catch &lt;3", "optimum 6", "env_steps", "score", "<polygon"] {
            assert!(svg.contains(words), "{words}: {svg}");
        }
        assert_eq!(svg, chart().to_svg().unwrap());
        let png = chart().to_png().unwrap();
        let picture = image::load_from_memory(&png).unwrap().to_rgb8();
        assert_eq!(picture.dimensions(), PICTURE_SIZE);
        let blue = picture.pixels().filter(|pixel| pixel.0 == [0, 114, 178]).count();
        assert!(blue > 500, "{blue} pixels of the curve");
    }

    #[test]
    fn a_single_point_is_a_dot_without_an_interval() {
        let line = Line { name: "once".to_string(), band: aggregate(&[vec![(16_384.0, 3.0)]]) };
        let svg = Chart { lines: vec![line], ..chart() }.to_svg().unwrap();
        assert_eq!(svg.matches("<circle").count(), 1, "{svg}");
        assert!(!svg.contains("<polygon") && svg.contains("10k"), "{svg}");
    }

    /// A chart with this many curves and this ending of their names.
    fn chart_with(curves: usize, ending: &str) -> Chart {
        let line = |i: usize| {
            let band = aggregate(&[vec![(0.0, i as f64), (1.0, i as f64)]]);
            Line { name: format!("curve {i} {ending}"), band }
        };
        Chart { lines: (0..curves).map(line).collect(), ..chart() }
    }

    #[test]
    fn many_curves_differ_and_their_legend_fits() {
        let chart = chart_with(25, &"x".repeat(200));
        let svg = chart.to_svg().unwrap();
        let dashes = svg.matches("<polyline").count();
        assert!(dashes > 200, "the later curves are dashed: {dashes} lines");
        assert!(svg.contains("curve 18 x") && !svg.contains("curve 19 x"), "{svg}");
        assert!(svg.contains("and 6 more") && !svg.contains(&"x".repeat(60)), "{svg}");
        assert!(chart.to_png().is_ok());
    }

    #[test]
    fn the_legend_of_many_curves_is_below_the_plot() {
        // Positions of the names, in SVG: `<text x="34" y="567" ...>` and the name on the next line.
        let positions = |svg: &str| -> Vec<(u32, u32)> {
            let texts = svg.split("<text ").filter(|text| text.contains("\ncurve "));
            let number = |text: &str, key: &str| {
                let (_, rest) = text.split_once(&format!("{key}=\"")).unwrap();
                rest.split('"').next().unwrap().parse().unwrap()
            };
            texts.map(|text| (number(text, "x"), number(text, "y"))).collect()
        };
        for (count, ending, columns) in [(7, "", 7), (20, "a name", 5), (20, &*"x".repeat(99), 1)] {
            let chart = chart_with(count, ending);
            let svg = chart.to_svg().unwrap();
            let (positions, picture) = (positions(&svg), chart.to_png().unwrap());
            let (width, height) = image::load_from_memory(&picture).unwrap().to_rgb8().dimensions();
            assert!(svg.contains(&format!("height=\"{height}\"")), "{svg}");
            assert_eq!((positions.len(), width), (count, PICTURE_SIZE.0));
            assert!(
                positions.iter().all(|(x, y)| *x < width && (PICTURE_SIZE.1..height).contains(y))
            );
            let first = positions.iter().filter(|(_, y)| *y == positions[0].1).count();
            assert_eq!(first, columns, "{positions:?}");
        }
        let few = chart_with(6, "").to_svg().unwrap();
        assert!(positions(&few).iter().all(|(_, y)| *y < PICTURE_SIZE.1));
    }

    #[test]
    fn a_chart_without_points_is_rejected() {
        let empty = Chart { lines: Vec::new(), reference_values: Vec::new(), ..chart() };
        assert!(matches!(empty.to_svg(), Err(ChartError::Empty)));
        let path = Path::new("curves.pdf");
        assert!(matches!(chart().write(path), Err(ChartError::Format(_))));
        assert_eq!(extent([f64::NAN].into_iter()), None);
        assert_eq!(extent([2.0].into_iter()), Some(1.0..3.0));
        assert_eq!(extent([0.0].into_iter()), Some(-0.5..0.5));
    }

    #[test]
    fn labels_have_unit_prefixes() {
        for (number, words) in [
            (0.0, "0"),
            (-0.0001, "0"),
            (0.25, "0.25"),
            (9999.0, "9999"),
            (9999.6, "10k"),
            (1.5e4, "15k"),
            (12345.678, "12.35k"),
            (234_567.8, "234.6k"),
            (999_960.0, "1M"),
            (-2e6, "-2M"),
            (999_960_000.0, "1G"),
            (3e9, "3G"),
        ] {
            assert_eq!(format_axis_label(number), words);
        }
    }
}
