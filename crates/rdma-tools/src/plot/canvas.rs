//! Draws pixels for PNG. Text uses a font that is part of the program.

use std::convert::Infallible;

use ab_glyph::{Font as _, FontRef, InvalidFont, PxScale, ScaleFont as _, point};
use anyhow::Result;
use plotters_backend::text_anchor::{HPos, VPos};
use plotters_backend::{
    BackendColor, BackendCoord, BackendTextStyle, DrawingBackend, DrawingErrorKind,
};

/// Plotters' font size is the length of the em times this factor.
const SIZE_OF_EM: f64 = 1.24;
const CHANNELS: usize = 3;

/// A picture that is initially white, with three bytes per pixel.
pub(super) struct Canvas<'a> {
    pixels: &'a mut Vec<u8>,
    width: u32,
    height: u32,
    font: FontRef<'static>,
}

type Outcome = Result<(), DrawingErrorKind<Infallible>>;

impl<'a> Canvas<'a> {
    pub(super) fn new(
        pixels: &'a mut Vec<u8>,
        (width, height): (u32, u32),
    ) -> Result<Self, InvalidFont> {
        pixels.clear();
        pixels.resize(width as usize * height as usize * CHANNELS, u8::MAX);
        let font = FontRef::try_from_slice(dejavu::sans::regular())?;
        Ok(Self { pixels, width, height, font })
    }

    /// Returns the scale of the font at which its em has the length that the style specifies.
    fn scale(&self, style: &impl BackendTextStyle) -> PxScale {
        #[expect(clippy::cast_possible_truncation, reason = "a size of text has few digits")]
        let em = (style.size() / SIZE_OF_EM) as f32;
        let units = self.font.units_per_em().unwrap_or(2048.0);
        PxScale::from(em * self.font.height_unscaled() / units)
    }

    fn width_of(&self, text: &str, scale: PxScale) -> f32 {
        let font = self.font.as_scaled(scale);
        text.chars().map(|letter| font.h_advance(font.glyph_id(letter))).sum()
    }

    /// Blends a color into a pixel. Ignores pixels outside the picture.
    fn mix(&mut self, (x, y): BackendCoord, color: BackendColor) {
        let (Ok(x), Ok(y)) = (u32::try_from(x), u32::try_from(y)) else { return };
        if x >= self.width {
            return;
        }
        let at = (y as usize * self.width as usize + x as usize) * CHANNELS;
        let pixel = self.pixels.get_mut(at..at + CHANNELS).unwrap_or_default();
        for (old, new) in pixel.iter_mut().zip(<[u8; CHANNELS]>::from(color.rgb)) {
            let mixed = f64::from(*old) * (1.0 - color.alpha) + f64::from(new) * color.alpha;
            // A mixture of two bytes always fits in a byte.
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            {
                *old = mixed.round() as u8;
            }
        }
    }
}

impl DrawingBackend for Canvas<'_> {
    type ErrorType = Infallible;

    fn get_size(&self) -> (u32, u32) {
        (self.width, self.height)
    }

    fn ensure_prepared(&mut self) -> Outcome {
        Ok(())
    }

    fn present(&mut self) -> Outcome {
        Ok(())
    }

    fn draw_pixel(&mut self, point: BackendCoord, color: BackendColor) -> Outcome {
        self.mix(point, color);
        Ok(())
    }

    fn estimate_text_size<S: BackendTextStyle>(
        &self,
        text: &str,
        style: &S,
    ) -> Result<(u32, u32), DrawingErrorKind<Infallible>> {
        let scale = self.scale(style);
        // No text is wider than the picture.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        Ok((self.width_of(text, scale).ceil() as u32, scale.y.ceil() as u32))
    }

    /// Draws text from left to right. Rotation is not supported, because no chart rotates its text.
    fn draw_text<S: BackendTextStyle>(
        &mut self,
        text: &str,
        style: &S,
        (x, y): BackendCoord,
    ) -> Outcome {
        let scale = self.scale(style);
        let font = self.font.clone();
        let font = font.as_scaled(scale);
        let width = self.width_of(text, scale);
        let left = match style.anchor().h_pos {
            HPos::Left => 0.0,
            HPos::Center => width / 2.0,
            HPos::Right => width,
        };
        let top = match style.anchor().v_pos {
            VPos::Top => 0.0,
            VPos::Center => font.height() / 2.0,
            VPos::Bottom => font.height(),
        };
        let mut pen = point(x as f32 - left, y as f32 - top + font.ascent());
        for letter in text.chars() {
            let glyph = font.glyph_id(letter).with_scale_and_position(scale, pen);
            pen.x += font.h_advance(glyph.id);
            let Some(outline) = font.outline_glyph(glyph) else { continue };
            let from = outline.px_bounds().min;
            outline.draw(|dx, dy, coverage| {
                let color = style.color().mix(f64::from(coverage.min(1.0)));
                // The size of a picture is far below the limits of `i32`.
                #[expect(clippy::cast_possible_truncation)]
                let at = (from.x as i32 + dx.cast_signed(), from.y as i32 + dy.cast_signed());
                self.mix(at, color);
            });
        }
        Ok(())
    }
}

/// Encodes these pixels as a PNG file.
pub(super) fn png(pixels: &[u8], (width, height): (u32, u32)) -> Result<Vec<u8>> {
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(pixels)?;
    writer.finish()?;
    Ok(file)
}
