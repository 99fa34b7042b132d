//! Where installations keep their libraries, and what a file is.
//!
//! The build script is compiled with this file too, without optimization and with every generic function
//! of the standard library anew: plain loops and few types keep that short.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The folders of an installation that may hold a library; stubs come last.
pub(crate) fn installation_folders(home: &Path, arch: &str) -> Vec<PathBuf> {
    let table = [
        "lib",
        "lib64",
        "lib/{multiarch}",
        "targets/{cuda}/lib",
        "",
        "lib/stubs",
        "lib64/stubs",
        "lib/{multiarch}/stubs",
        "targets/{cuda}/lib/stubs",
        "stubs",
    ];
    fill_in(home, &table, arch)
}

pub(crate) fn fill_in(base: &Path, table: &[&str], arch: &str) -> Vec<PathBuf> {
    let multiarch = format!("{arch}-linux-gnu");
    // Arm servers and Arm boards have different names.
    let cuda_names: &[&str] = match arch {
        "x86_64" => &["x86_64-linux"],
        "aarch64" => &["sbsa-linux", "aarch64-linux"],
        _ => &["none"],
    };
    let mut folders = Vec::new();
    for entry in table {
        for name in cuda_names {
            let mut folder = base.to_path_buf();
            let mut by_name = false;
            for part in entry.split('/') {
                by_name |= part == "{cuda}";
                match part {
                    // Without a slash at the end.
                    "" => {}
                    "{multiarch}" => folder.push(&*multiarch),
                    "{cuda}" => folder.push(*name),
                    part => folder.push(part),
                }
            }
            folders.push(folder);
            if !by_name {
                break;
            }
        }
    }
    folders
}

pub(crate) fn is_stubs(folder: &Path) -> bool {
    folder.ends_with("stubs")
}

/// How the sentence about a file begins that was cut short.
pub(crate) const TRUNCATED: &str = "is truncated";

/// The soname of a shared library for this architecture, if it has one; or what is wrong with the file.
pub(crate) fn soname(file: &Path, arch: &str) -> Result<Option<String>, String> {
    let metadata = match fs::metadata(file) {
        Ok(metadata) => metadata,
        Err(error) => {
            return Err(match fs::read_link(file) {
                Ok(to) if error.kind() == ErrorKind::NotFound => {
                    format!("is a dangling link to {}", to.display())
                }
                _ => reason(&error),
            });
        }
    };
    if metadata.is_dir() {
        return Err("is a directory, not a library".into());
    }
    if !metadata.is_file() {
        return Err("is not a regular file".into());
    }
    let length = metadata.len();
    let file = match File::open(file) {
        Ok(file) => file,
        Err(error) => return Err(reason(&error)),
    };
    let read = |at: u64, count: u64| -> Result<Vec<u8>, String> {
        let mut bytes = vec![0; count.min(length.saturating_sub(at)) as usize];
        match file.read_at(&mut bytes, at) {
            Ok(count) if count == bytes.len() => Ok(bytes),
            Ok(_) => Err("is truncated while it is read".into()),
            Err(error) => Err(reason(&error)),
        }
    };
    let truncated = |end: u64| Err(format!("{TRUNCATED}: {length} bytes, of {end} or more"));

    let head = read(0, 4096)?;
    if !head.starts_with(b"\x7fELF") {
        return Err(what_else(&head).into());
    }
    if length < 64 {
        return truncated(64);
    }
    let field = |at: usize, size: usize| number(&head, at, size);
    let kind = match (field(4, 1), field(5, 1)) {
        (2, 1) => "",
        (1, _) => "32-bit",
        _ => "big-endian",
    };
    if !kind.is_empty() {
        return Err(format!(
            "is a {kind} library, which a program for {arch} cannot use"
        ));
    }
    let machine = match field(18, 2) {
        62 => "x86_64",
        183 => "aarch64",
        21 => "powerpc64",
        243 => "riscv64",
        _ => "another machine",
    };
    if machine != arch {
        return Err(format!(
            "is built for {machine}, and the program for {arch}"
        ));
    }
    if field(16, 2) != 3 {
        return Err("is an ELF file, but not a shared library".into());
    }
    // The section table ends the file: a copy that was cut short anywhere lacks it.
    let end = field(40, 8).saturating_add(field(58, 2) * field(60, 2));
    if end > length {
        return truncated(end);
    }
    let (segments_at, segments_size) = (field(32, 8), field(56, 2) * 56);
    let end = segments_at.saturating_add(segments_size);
    if end > length {
        return truncated(end);
    }

    // The soname: program headers, the dynamic section among them, its string table.
    let segments = read(segments_at, segments_size)?;
    let mut dynamic = Vec::new();
    for segment in segments.chunks_exact(56) {
        let kind = number(segment, 0, 4);
        let (at, size) = (number(segment, 8, 8), number(segment, 32, 8));
        // What is loaded, and the dynamic section.
        if kind == 1 || kind == 2 {
            let end = at.saturating_add(size);
            if end > length {
                return truncated(end);
            }
        }
        if kind == 2 {
            // Enough for some thousand entries.
            dynamic = read(at, size.min(1 << 16))?;
        }
    }
    if dynamic.is_empty() {
        return Err("has no dynamic section".into());
    }
    let (mut strings, mut name) = (None, None);
    for entry in dynamic.chunks_exact(16) {
        match number(entry, 0, 8) {
            5 => strings = Some(number(entry, 8, 8)),
            14 => name = Some(number(entry, 8, 8)),
            _ => {}
        }
    }
    let (Some(strings), Some(name)) = (strings, name) else {
        return Ok(None);
    };
    for segment in segments.chunks_exact(56) {
        let inside = strings.wrapping_sub(number(segment, 16, 8));
        if number(segment, 0, 4) == 1 && inside < number(segment, 32, 8) {
            let at = number(segment, 8, 8).saturating_add(inside);
            let bytes = read(at.saturating_add(name), 256)?;
            return Ok(Some(text_at(&bytes, 0).into()));
        }
    }
    Err("has a dynamic section without names".into())
}

fn what_else(head: &[u8]) -> &'static str {
    let has = |part: &[u8]| position(head, part).is_some();
    if head.is_empty() {
        "is empty"
    } else if std::str::from_utf8(head).is_err() || has(b"\0") {
        "is not an ELF file"
    } else if has(b"GROUP") || has(b"INPUT") {
        "is a text file, a linker script: name the folder of the library it leads to"
    } else {
        "is a text file, not a library"
    }
}

/// Where `part` first is.
pub(crate) fn position(bytes: &[u8], part: &[u8]) -> Option<usize> {
    let mut at = 0;
    while !bytes[at..].starts_with(part) {
        if at == bytes.len() {
            return None;
        }
        at += 1;
    }
    Some(at)
}

/// The little-endian number of up to eight bytes at an offset; 0 beyond the end.
pub(crate) fn number(bytes: &[u8], at: usize, size: usize) -> u64 {
    let mut number = [0; 8];
    if let Some(bytes) = bytes.get(at..at + size) {
        number[..size].copy_from_slice(bytes);
    }
    u64::from_le_bytes(number)
}

/// The text at an offset, up to the zero byte; empty where there is none.
pub(crate) fn text_at(bytes: &[u8], at: u64) -> &str {
    let bytes = bytes.get(at as usize..).unwrap_or_default();
    let end = position(bytes, b"\0").unwrap_or(0);
    utf8(&bytes[..end])
}

pub(crate) fn utf8(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap_or_default()
}

/// Why a file or a folder is of no use.
pub(crate) fn reason(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::NotFound => "does not exist".into(),
        _ => format!("cannot be read: {error}"),
    }
}
