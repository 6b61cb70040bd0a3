//! Compressed files: gzip and zstd, recognised by their first bytes when read, by their names when written.

use std::io::{self, BufRead, BufReader, BufWriter, Cursor, Read, Write};
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;
use flate2::write::GzEncoder;
use zstd::stream::read::Decoder;
use zstd::stream::write::Encoder;

/// How a file is packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    Plain,
    /// gzip, RFC 1952.
    Gzip,
    /// zstd, RFC 8878.
    Zstd,
}

const GZIP: &[u8] = &[0x1f, 0x8b];
const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];

/// The most that unpacking zstd may keep of what it decompressed: 2 to this power, 32 MiB. `zstd` asks for more only when
/// told to with `--long` or `--ultra`.
const ZSTD_WINDOW: u32 = 25;

const BUFFER: usize = 128 * 1024;

impl Compression {
    /// What the name of a file asks for.
    #[must_use]
    pub fn of_name(file: &Path) -> Self {
        match file.extension().and_then(|extension| extension.to_str()) {
            Some("gz") => Self::Gzip,
            Some("zst") => Self::Zstd,
            _ => Self::Plain,
        }
    }

    /// The name without the part that tells how the file is packed.
    #[must_use]
    pub fn stripped(file: &Path) -> PathBuf {
        match Self::of_name(file) {
            Self::Plain => file.to_owned(),
            Self::Gzip | Self::Zstd => file.with_extension(""),
        }
    }
}

/// What is in the input, decompressed if its first bytes say that it is packed.
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

/// An output that packs what is written to it. It is whole only when [`finish`](Self::finish) has said so.
pub enum CompressedWriter<W: Write> {
    /// As it is.
    Plain(BufWriter<W>),
    /// As gzip.
    Gzip(Box<GzEncoder<BufWriter<W>>>),
    /// As zstd.
    Zstd(Box<Encoder<'static, BufWriter<W>>>),
}

impl<W: Write> CompressedWriter<W> {
    /// Packs to `output`.
    pub fn new(output: W, compression: Compression) -> io::Result<Self> {
        let output = BufWriter::with_capacity(BUFFER, output);
        Ok(match compression {
            Compression::Plain => Self::Plain(output),
            Compression::Gzip => Self::Gzip(Box::new(GzEncoder::new(output, flate2::Compression::default()))),
            Compression::Zstd => Self::Zstd(Box::new(Encoder::new(output, zstd::DEFAULT_COMPRESSION_LEVEL)?)),
        })
    }

    /// Writes what is left.
    pub fn finish(self) -> io::Result<()> {
        match self {
            Self::Plain(mut output) => output.flush(),
            Self::Gzip(output) => output.finish()?.flush(),
            Self::Zstd(output) => output.finish()?.flush(),
        }
    }
}

impl<W: Write> Write for CompressedWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(output) => output.write(bytes),
            Self::Gzip(output) => output.write(bytes),
            Self::Zstd(output) => output.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(output) => output.flush(),
            Self::Gzip(output) => output.flush(),
            Self::Zstd(output) => output.flush(),
        }
    }
}
