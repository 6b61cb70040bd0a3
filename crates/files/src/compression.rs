//! Compressed files: gzip and zstd, recognised by their first bytes when read, by their names when written.

use std::io::{self, BufRead, BufReader, BufWriter, Cursor, Read, Write};
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;
use flate2::write::GzEncoder;
use zstd::stream::read::Decoder;
use zstd::stream::write::Encoder;

/// How a file is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// Uncompressed.
    Plain,
    /// gzip, RFC 1952.
    Gzip,
    /// zstd, RFC 8878.
    Zstd,
}

const GZIP: &[u8] = &[0x1f, 0x8b];
const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];

/// The largest window of a zstd file, as a power of two: 32 MiB. `zstd` exceeds it only with `--long` or `--ultra`.
const ZSTD_WINDOW: u32 = 25;

const BUFFER: usize = 128 * 1024;

impl Compression {
    /// The compression that the extension of a file names.
    #[must_use]
    pub fn from_extension(file: &Path) -> Self {
        match file.extension().and_then(|extension| extension.to_str()) {
            Some("gz") => Self::Gzip,
            Some("zst") => Self::Zstd,
            _ => Self::Plain,
        }
    }

    /// The name without the extension of the compression.
    #[must_use]
    pub fn strip_extension(file: &Path) -> PathBuf {
        match Self::from_extension(file) {
            Self::Plain => file.to_owned(),
            Self::Gzip | Self::Zstd => file.with_extension(""),
        }
    }
}

/// Reads the input, decompressed if its first bytes are those of a compressed file.
pub fn decompressed(mut input: impl Read + Send + 'static) -> io::Result<Box<dyn BufRead + Send>> {
    let mut first = Vec::with_capacity(ZSTD.len());
    input.by_ref().take(ZSTD.len() as u64).read_to_end(&mut first)?;
    let (gzip, zstd) = (first.starts_with(GZIP), first == ZSTD);
    let input = BufReader::with_capacity(BUFFER, Cursor::new(first).chain(input));
    Ok(if gzip {
        Box::new(BufReader::with_capacity(BUFFER, MultiGzDecoder::new(input)))
    } else if zstd {
        let mut decoder = Decoder::with_buffer(input)?;
        decoder.window_log_max(ZSTD_WINDOW)?;
        Box::new(BufReader::with_capacity(BUFFER, decoder))
    } else {
        Box::new(input)
    })
}

/// Compresses what is written to it. The output is complete only after [`finish`](Self::finish).
pub enum ExportWriter<W: Write> {
    /// Uncompressed.
    Plain(BufWriter<W>),
    /// As gzip.
    Gzip(Box<GzEncoder<BufWriter<W>>>),
    /// As zstd.
    Zstd(Box<Encoder<'static, BufWriter<W>>>),
}

impl<W: Write> ExportWriter<W> {
    /// Writes to `output`.
    pub fn new(output: W, compression: Compression) -> io::Result<Self> {
        let output = BufWriter::with_capacity(BUFFER, output);
        Ok(match compression {
            Compression::Plain => Self::Plain(output),
            Compression::Gzip => Self::Gzip(Box::new(GzEncoder::new(output, flate2::Compression::default()))),
            Compression::Zstd => {
                let mut encoder = Encoder::new(output, zstd::DEFAULT_COMPRESSION_LEVEL)?;
                // As `zstd` does and gzip always has: an import detects damage.
                encoder.include_checksum(true)?;
                Self::Zstd(Box::new(encoder))
            }
        })
    }

    /// Writes the end of the file.
    pub fn finish(self) -> io::Result<()> {
        match self {
            Self::Plain(mut output) => output.flush(),
            Self::Gzip(output) => output.finish()?.flush(),
            Self::Zstd(output) => output.finish()?.flush(),
        }
    }

    fn encoder(&mut self) -> &mut dyn Write {
        match self {
            Self::Plain(output) => output,
            Self::Gzip(output) => output,
            Self::Zstd(output) => output,
        }
    }
}

impl<W: Write> Write for ExportWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.encoder().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.encoder().flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_flushed_can_be_read_before_the_end_of_the_file() {
        for compression in [Compression::Plain, Compression::Gzip, Compression::Zstd] {
            let mut writer = ExportWriter::new(Vec::new(), compression).unwrap();
            writer.write_all(b"Rex").unwrap();
            writer.flush().unwrap();
            let written = match &writer {
                ExportWriter::Plain(output) => output.get_ref(),
                ExportWriter::Gzip(output) => output.get_ref().get_ref(),
                ExportWriter::Zstd(output) => output.get_ref().get_ref(),
            };
            let mut read = [0; 3];
            decompressed(Cursor::new(written.clone())).unwrap().read_exact(&mut read).unwrap();
            assert_eq!(&read, b"Rex", "{compression:?}");
        }
    }
}
