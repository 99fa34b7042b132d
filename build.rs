//! Finds libnccl and libcuda, and tells cargo how to link them.
//!
//! Variables, each looked for with the target in front (`AARCH64_UNKNOWN_LINUX_GNU_NCCL_HOME`)
//! before the plain name; an empty one counts as unset:
//!
//! - `NCCL_HOME`: an installation of NCCL, or the folder that holds `libnccl.so.2`. Once it is set,
//!   nothing else is looked at.
//! - `CUDA_PATH`: a CUDA toolkit, or the folder that holds `libcuda.so.1`. A toolkit has at most a
//!   stub of that library, so the system is looked at too.
//!
//! Otherwise the system's places count. A library that is nowhere is replaced by an import stub:
//! a library with the same functions, each of which fails.
//!
//! The build scripts of direct dependents get:
//!
//! - `DEP_NCCL_RPATH`: the folders, joined by `:`, where a program finds its libraries at run time.
//!   Never empty, and free of commas: `cargo::rustc-link-arg=-Wl,-rpath,{it}` is all it takes.
//! - `DEP_NCCL_LIB_DIR`, `DEP_NCCL_CUDA_LIB_DIR`: the folders of the libraries, where found.
//! - `DEP_NCCL_INCLUDE_DIR`, `DEP_NCCL_VERSION`: the folder of the `nccl.h` that lies beside the
//!   library, and the version that it states (`2.27.3`).
//! - `DEP_NCCL_BINDING`: how the functions are bound (`linked`).
//!
//! `build_report.txt` in `OUT_DIR` tells what was found, and where it was looked for.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

/// What is known about one of the two libraries.
pub(crate) struct Library {
    pub(crate) name: &'static str,
    /// The name that programs ask the loader for.
    pub(crate) soname: &'static str,
    /// The further name that packages for developers bring.
    pub(crate) link_name: &'static str,
    pub(crate) variable: &'static str,
    /// Whether the variable is wrong where the library is not below it.
    pub(crate) strict: bool,
    /// Where its functions are declared, and how their names start.
    pub(crate) declarations: &'static str,
    pub(crate) prefix: &'static str,
    /// What the functions of the import stub return.
    pub(crate) stub_code: &'static str,
    /// The metadata that names its folder.
    pub(crate) folder_key: &'static str,
}

pub(crate) static NCCL: Library = Library {
    name: "nccl",
    soname: "libnccl.so.2",
    link_name: "libnccl.so",
    variable: "NCCL_HOME",
    strict: true,
    declarations: "src/nccl/ffi.rs",
    prefix: "nccl",
    stub_code: "2", // ncclSystemError
    folder_key: "LIB_DIR",
};

pub(crate) static CUDA: Library = Library {
    name: "cuda",
    soname: "libcuda.so.1",
    link_name: "libcuda.so",
    variable: "CUDA_PATH",
    strict: false,
    declarations: "src/cuda/ffi.rs",
    prefix: "cu",
    stub_code: "34", // CUDA_ERROR_STUB_LIBRARY
    folder_key: "CUDA_LIB_DIR",
};

/// Where to look, for what machine, and where to put what is made.
pub(crate) struct Context<'a> {
    pub(crate) triple: String,
    pub(crate) arch: String,
    pub(crate) variable: &'a dyn Fn(&str) -> Option<OsString>,
    /// `/`, but for tests.
    pub(crate) root: &'a Path,
    pub(crate) out: &'a Path,
}

/// Why a file was taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    Variable(String),
    /// The dynamic loader finds it without help.
    LoaderCache,
    SystemPlace,
}

/// A usable library.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) file: PathBuf,
    pub(crate) source: Source,
    /// In a toolkit's `stubs`: good for the linker, useless at run time.
    pub(crate) toolkit_stub: bool,
    /// Whether the file has a soname. Without, a program asks for the name it was linked under.
    pub(crate) named: bool,
}

/// What became of the search for one library.
#[derive(Debug, Default)]
pub(crate) struct Search {
    pub(crate) found: Option<Found>,
    /// The places that were passed over, each with the reason.
    pub(crate) tried: Vec<(PathBuf, String)>,
    /// Folders where it may yet appear.
    pub(crate) watch: Vec<PathBuf>,
}

fn main() -> ExitCode {
    let Err(message) = run() else {
        return ExitCode::SUCCESS;
    };
    for line in message.lines() {
        println!("cargo::error={line}");
    }
    ExitCode::FAILURE
}

fn run() -> Result<(), String> {
    let get = |name: &str| env::var(name).map_err(|error| format!("{name}: {error}"));
    let triple = get("TARGET")?;
    println!("cargo::rerun-if-changed=build.rs");
    for library in [&NCCL, &CUDA] {
        for name in variable_names(library, &triple) {
            println!("cargo::rerun-if-env-changed={name}");
        }
    }
    println!("cargo::metadata=BINDING=linked");
    let out = PathBuf::from(get("OUT_DIR")?);
    let out = out.as_path();
    let report_file = out.join("build_report.txt");
    let environment = env::var("CARGO_CFG_TARGET_ENV").unwrap_or_default();
    if get("CARGO_CFG_TARGET_OS")? != "linux" || environment != "gnu" {
        let line = format!("NCCL needs Linux with glibc: nothing is linked for {triple}");
        println!("cargo::warning={line}");
        return write(&report_file, &line);
    }
    // Cargo keeps OUT_DIR; what an earlier run left here could be linked or loaded.
    for folder in ["link", "run", "home"] {
        let _ = fs::remove_dir_all(out.join(folder));
    }
    let arch = get("CARGO_CFG_TARGET_ARCH")?;
    let root = Path::new("/");
    let variable = &|name: &str| env::var_os(name);
    let context = Context {
        triple,
        arch,
        variable,
        root,
        out,
    };

    let nccl = find(&NCCL, &context)?;
    let cuda = find(&CUDA, &context)?;
    // Both at once: rustc takes longer than all the rest.
    let nccl_stub = start_stub(&NCCL, &nccl, &context)?;
    let cuda_stub = start_stub(&CUDA, &cuda, &context)?;

    let mut report = format!("target: {}\nbinding: linked\n", context.triple);
    let mut folders = Vec::new();
    let mut stub_folders = Vec::new();
    let mut missing = Vec::new();
    println!(
        "cargo::rustc-link-search=native={}",
        out.join("link").display()
    );
    for (library, search, stub) in [(&NCCL, &nccl, nccl_stub), (&CUDA, &cuda, cuda_stub)] {
        describe(library, search, &mut report);
        let mut file = search.found.as_ref().map(|found| found.file.clone());
        if let Some(stub) = stub {
            let (stub_file, made) = stub.finish();
            report += &match &made {
                Ok(()) => format!("  import stub: {}\n", stub_file.display()),
                Err(why) => format!("  no import stub could be made: {why}\n"),
            };
            if let Err(why) = made {
                println!(
                    "cargo::warning=no import stub for {}: {why}",
                    library.soname
                );
            } else {
                missing.push(library.soname);
                stub_folders.push(parent(&stub_file).to_path_buf());
                file = file.or(Some(stub_file));
            }
        } else if let Some(found) = &search.found {
            folders.extend(run_folder(library, found, out)?);
        }
        if let Some(file) = file {
            let named = search.found.as_ref().is_none_or(|found| found.named);
            link(library, &file, named, out)?;
        }
        rerun_if_changed(search);
    }
    if let Some(found) = &nccl.found {
        describe_header(found, &mut report);
    }
    if !missing.is_empty() {
        let names = missing.join(" and ");
        println!("cargo::warning={names} not found: an import stub stands in, whose calls fail");
        // The loader asks these before its own cache: what is real must come before a stub.
        let places = system_folders(root, &context.arch).into_iter();
        folders.extend(places.filter(|folder| !is_stubs(folder)));
        folders.append(&mut stub_folders);
    }
    let folders: Vec<&str> = folders
        .iter()
        .filter_map(|folder| folder.to_str())
        .collect();
    let mut joined = folders.join(":");
    if joined.is_empty() {
        // To the loader, an empty list is the working directory. The program's own is harmless.
        joined += "$ORIGIN";
    }
    for argument in ["-Xlinker", "-rpath", "-Xlinker", &joined] {
        println!("cargo::rustc-link-arg={argument}");
    }
    println!("cargo::metadata=RPATH={joined}");
    report += &format!("run-time folders: {joined}\n");
    write(&report_file, &report)
}

// ---- Where to look ----

/// The two names of the library's variable, in the order in which they count.
pub(crate) fn variable_names(library: &Library, triple: &str) -> [String; 2] {
    let plain = library.variable.to_string();
    [
        format!("{triple}_{plain}")
            .to_uppercase()
            .replace(['-', '.'], "_"),
        plain,
    ]
}

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

/// The places where systems keep the two libraries; stubs come last.
pub(crate) fn system_folders(root: &Path, arch: &str) -> Vec<PathBuf> {
    let table = [
        // Where one of these exists, it holds the driver's only right library.
        "usr/lib/wsl/lib",
        "usr/local/nvidia/lib64",
        "usr/local/nvidia/lib",
        "run/opengl-driver/lib",
        "usr/lib/{multiarch}",
        "usr/lib64",
        "usr/lib",
        "usr/lib/{multiarch}/nvidia/current",
        "usr/local/lib",
        "usr/local/lib64",
        "usr/local/cuda/lib64",
        "usr/local/cuda/targets/{cuda}/lib",
        "opt/cuda/lib64",
        "usr/local/cuda/lib64/stubs",
        "usr/local/cuda/targets/{cuda}/lib/stubs",
        "opt/cuda/lib64/stubs",
        "usr/lib/{multiarch}/stubs",
    ];
    fill_in(root, &table, arch)
}

fn fill_in(base: &Path, table: &[&str], arch: &str) -> Vec<PathBuf> {
    // Arm servers and Arm boards have different names.
    let cuda_names: &[&str] = match arch {
        "x86_64" => &["x86_64-linux"],
        "aarch64" => &["sbsa-linux", "aarch64-linux"],
        _ => &["none"],
    };
    let mut folders = Vec::new();
    for entry in table {
        let entry = entry.replace("{multiarch}", &format!("{arch}-linux-gnu"));
        for name in cuda_names {
            // Without a slash at the end.
            let folder = base
                .join(entry.replace("{cuda}", name))
                .components()
                .collect();
            if !folders.contains(&folder) {
                folders.push(folder);
            }
        }
    }
    folders
}

/// Looks below the library's variable, then in the system.
pub(crate) fn find(library: &Library, context: &Context) -> Result<Search, String> {
    let mut search = Search::default();
    // Taken only where nothing better is found.
    let mut stub = None;
    if let Some((name, home)) = home(library, context)? {
        let mut below = false;
        for folder in installation_folders(&home, &context.arch) {
            if let Some((file, named)) = look_into(&folder, library, context, &mut search) {
                let found = Found::new(file, Source::Variable(name.clone()), named);
                if library.strict || !found.toolkit_stub {
                    search.watch.clear();
                    search.found = Some(found);
                    return Ok(search);
                }
                stub = stub.or(Some(found));
            }
            // A watched folder is walked on each build: the home only where it has no other.
            if folder.is_dir() && (folder != home || !below) {
                below = true;
                search.watch.push(folder);
            }
        }
        if library.strict {
            return Err(nothing_below(library, &name, &home, &search));
        }
    }
    let cache = context.root.join("etc/ld.so.cache");
    for file in cached_files(&fs::read(&cache).unwrap_or_default(), library.soname) {
        let file = context.root.join(file.trim_start_matches('/'));
        match check(&file, library, context) {
            Ok(named) => {
                let found = Found::new(file, Source::LoaderCache, named);
                if !found.toolkit_stub && search.found.is_none() {
                    search.found = Some(found);
                }
            }
            Err(why) => search.tried.push((file, why)),
        }
    }
    if cache.exists() {
        search.watch.push(cache);
    }
    for folder in system_folders(context.root, &context.arch) {
        if search.found.is_some() {
            break;
        }
        if let Some((file, named)) = look_into(&folder, library, context, &mut search) {
            let found = Found::new(file, Source::SystemPlace, named);
            if found.toolkit_stub {
                stub = stub.or(Some(found));
            } else {
                search.found = Some(found);
            }
        }
    }
    search.found = search.found.or(stub);
    Ok(search)
}

/// The variable that is set, and the folder that it names.
fn home(library: &Library, context: &Context) -> Result<Option<(String, PathBuf)>, String> {
    for name in variable_names(library, &context.triple) {
        let value = PathBuf::from((context.variable)(&name).unwrap_or_default());
        if value.as_os_str().is_empty() {
            continue;
        }
        let why = match fs::metadata(&value) {
            _ if value.is_relative() => {
                "a relative path: cargo runs this script in a folder of its own, so give the full path"
                    .to_string()
            }
            Ok(metadata) if metadata.is_dir() => {
                return Ok(Some((name, carried(library, &value, context)?)));
            }
            Ok(_) => format!("a file: name the folder that holds {}", library.soname),
            Err(error) if error.kind() == ErrorKind::NotFound => "which does not exist".into(),
            Err(error) => format!("which cannot be read: {error}"),
        };
        return Err(format!("{name} is {}, {why}", value.display()));
    }
    Ok(None)
}

/// `home`, through a link where cargo's lines or a list of run-time folders cannot carry it.
fn carried(library: &Library, home: &Path, context: &Context) -> Result<PathBuf, String> {
    // Without a slash at the end.
    let home: PathBuf = home.components().collect();
    let awkward = |byte: &u8| b"\n\r,:$".contains(byte);
    if home
        .to_str()
        .is_some_and(|text| !text.as_bytes().iter().any(awkward))
    {
        return Ok(home);
    }
    let link = context.out.join("home").join(library.name);
    make_link(&home, &link)?;
    Ok(link)
}

fn nothing_below(library: &Library, name: &str, home: &Path, search: &Search) -> String {
    let (soname, home) = (library.soname, home.display());
    let mut message = format!("{name} is {home}, where no usable {soname} was found:\n");
    for (place, why) in &search.tried {
        message += &format!("  {} {why}\n", place.display());
    }
    message
        + &format!("let {name} name the folder of {soname} or the one above its lib, or unset it")
}

/// The library in `folder`, and whether it has a soname; otherwise notes what is wrong.
///
/// A bad file under the soname is not passed over for its neighbour: the loader would take it.
fn look_into(
    folder: &Path,
    library: &Library,
    context: &Context,
    search: &mut Search,
) -> Option<(PathBuf, bool)> {
    for name in [library.soname, library.link_name] {
        let file = folder.join(name);
        if fs::symlink_metadata(&file).is_ok() {
            match check(&file, library, context) {
                Ok(named) => return Some((file, named)),
                Err(why) => search.tried.push((file, why)),
            }
            return None;
        }
    }
    let why = match fs::read_dir(folder) {
        Ok(_) => format!("has no {}", library.soname),
        Err(error) if error.kind() == ErrorKind::NotFound => "does not exist".into(),
        Err(error) => format!("cannot be read: {error}"),
    };
    search.tried.push((folder.to_path_buf(), why));
    None
}

impl Found {
    fn new(file: PathBuf, source: Source, named: bool) -> Found {
        let real = file.canonicalize().unwrap_or_default();
        let toolkit_stub = is_stubs(parent(&file)) || is_stubs(parent(&real));
        Found {
            file,
            source,
            toolkit_stub,
            named,
        }
    }
}

fn is_stubs(folder: &Path) -> bool {
    folder.file_name() == Some(OsStr::new("stubs"))
}

fn parent(file: &Path) -> &Path {
    file.parent().unwrap_or(file)
}

/// The files that the dynamic loader's cache has under this name, the preferred one first.
pub(crate) fn cached_files(cache: &[u8], soname: &str) -> Vec<String> {
    let magic = b"glibc-ld.so.cache1.1";
    let (header, entry_size) = (48, 24);
    // Older systems keep another table in front. Offsets count from where this one starts.
    let start = cache
        .windows(magic.len())
        .position(|window| window == magic);
    let cache = &cache[start.unwrap_or(cache.len())..];
    let text = |at: usize| text_at(cache, number(cache, at, 4)? as usize);
    let count = number(cache, magic.len(), 4).unwrap_or(0) as usize;
    let mut files = Vec::new();
    for index in 0..count {
        let entry = header + index * entry_size;
        let (Some(name), Some(file)) = (text(entry + 4), text(entry + 8)) else {
            break;
        };
        if name == soname {
            files.push(file.to_string());
        }
    }
    files
}

// ---- What a file is ----

/// Whether `file` can be linked for the target, and if so, whether it has a soname.
pub(crate) fn check(file: &Path, library: &Library, context: &Context) -> Result<bool, String> {
    let triple = &context.triple;
    let unreadable = |error: std::io::Error| format!("cannot be read: {error}");
    let metadata = fs::metadata(file).map_err(|error| match fs::read_link(file) {
        Ok(to) if error.kind() == ErrorKind::NotFound => {
            format!("is a dangling link to {}", to.display())
        }
        _ => unreadable(error),
    })?;
    if metadata.is_dir() {
        return Err("is a directory, not a library".into());
    }
    if !metadata.is_file() {
        return Err("is not a regular file".into());
    }
    let length = metadata.len();
    let mut file = File::open(file).map_err(unreadable)?;
    let mut read = |at: u64, count: u64| {
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(at)).map_err(unreadable)?;
        (&mut file)
            .take(count)
            .read_to_end(&mut bytes)
            .map_err(unreadable)?;
        Ok::<_, String>(bytes)
    };
    let truncated = |end: u64| format!("is truncated: {length} bytes, of {end} or more");

    let head = read(0, 4096)?;
    if !head.starts_with(b"\x7fELF") {
        return Err(what_else(&head));
    }
    let field = |at: usize, size: usize| number(&head, at, size).ok_or_else(|| truncated(64));
    let kind = match (field(4, 1)?, field(5, 1)?) {
        (2, 1) => "",
        (1, _) => "32-bit",
        _ => "big-endian",
    };
    if !kind.is_empty() {
        return Err(format!("is a {kind} library, which {triple} cannot use"));
    }
    let machine = match field(18, 2)? {
        62 => "x86_64",
        183 => "aarch64",
        21 => "powerpc64",
        243 => "riscv64",
        _ => "another machine",
    };
    if machine != context.arch {
        return Err(format!(
            "is built for {machine}, but the target is {triple}"
        ));
    }
    if field(16, 2)? != 3 {
        return Err("is an ELF file, but not a shared library".into());
    }
    // The section table ends the file: a copy that was cut short anywhere lacks it.
    let end = field(40, 8)?.saturating_add(field(58, 2)? * field(60, 2)?);
    if end > length {
        return Err(truncated(end));
    }

    // The soname: program headers, the dynamic section among them, its string table.
    let segments = read(field(32, 8)?, field(56, 2)? * 56)?;
    let segment = |kind: u64, address: Option<u64>| {
        segments.chunks_exact(56).find_map(|segment| {
            let [offset, start, size] = [8, 16, 32].map(|at| number(segment, at, 8).unwrap_or(0));
            let here = address.is_none_or(|address| address.wrapping_sub(start) < size);
            (number(segment, 0, 4) == Some(kind) && here).then_some((offset, start, size))
        })
    };
    let Some((offset, _, size)) = segment(2, None) else {
        return Err("has no dynamic section".into());
    };
    let dynamic = read(offset, size)?;
    let entry = |tag: u64| {
        let entry = dynamic
            .chunks_exact(16)
            .find(|entry| number(entry, 0, 8) == Some(tag))?;
        number(entry, 8, 8)
    };
    let (Some(strings), Some(name)) = (entry(5), entry(14)) else {
        return Ok(false);
    };
    let Some((offset, start, _)) = segment(1, Some(strings)) else {
        return Err("has a dynamic section without names".into());
    };
    let bytes = read(
        (strings - start)
            .saturating_add(offset)
            .saturating_add(name),
        256,
    )?;
    match text_at(&bytes, 0) {
        Some(name) if name == library.soname => Ok(true),
        name => Err(format!(
            "calls itself {}, and programs would ask for that",
            name.unwrap_or("nothing that can be read")
        )),
    }
}

fn what_else(head: &[u8]) -> String {
    match std::str::from_utf8(head) {
        Ok("") => "is empty".into(),
        Ok(text) if text.contains("GROUP") || text.contains("INPUT") => {
            "is a text file, a linker script: name the folder of the library it leads to".into()
        }
        Ok(text) if !text.contains('\0') => "is a text file, not a library".into(),
        _ => "is not an ELF file".into(),
    }
}

/// The little-endian number of up to eight bytes at an offset.
fn number(bytes: &[u8], at: usize, size: usize) -> Option<u64> {
    let mut number = [0; 8];
    number[..size].copy_from_slice(bytes.get(at..at.checked_add(size)?)?);
    Some(u64::from_le_bytes(number))
}

/// The text at an offset, up to the zero byte.
fn text_at(bytes: &[u8], at: usize) -> Option<&str> {
    let bytes = bytes.get(at..)?;
    let end = bytes.iter().position(|byte| *byte == 0)?;
    std::str::from_utf8(&bytes[..end]).ok()
}

/// The `nccl.h` that was installed with the library in this folder.
pub(crate) fn header_of(folder: &Path) -> Option<PathBuf> {
    let headers = folder
        .ancestors()
        .take(3)
        .map(|folder| folder.join("include/nccl.h"));
    headers.into_iter().find(|header| header.is_file())
}

/// The version that a `nccl.h` states.
pub(crate) fn header_version(text: &str) -> Option<String> {
    let value = |name: &str| {
        for line in text.lines() {
            let mut words = line.split_whitespace();
            if words.next() == Some("#define") && words.next() == Some(name) {
                return words.next()?.parse::<u32>().ok();
            }
        }
        None
    };
    let [major, minor, patch] = ["NCCL_MAJOR", "NCCL_MINOR", "NCCL_PATCH"].map(value);
    Some(format!("{}.{}.{}", major?, minor?, patch?))
}

// ---- Import stubs ----

/// What a stub function gives back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    Code,
    Pointer,
    Nothing,
}

/// The functions that a source file declares by `pub fn NAME(..) -> TYPE;`.
pub(crate) fn declared_functions(source: &str, prefix: &str) -> Vec<(String, Answer)> {
    let mut code = String::new();
    for line in source
        .lines()
        .map(str::trim)
        .filter(|line| !line.starts_with("//"))
    {
        code += line;
        code += " ";
    }
    let mut functions = Vec::new();
    for piece in code.split("pub fn ").skip(1) {
        let Some((name, rest)) = piece.split_once('(') else {
            continue;
        };
        // Parameters may hold parentheses and semicolons of their own.
        let mut depth = 1;
        let end = rest.find(|letter: char| {
            depth += i32::from(letter == '(') - i32::from(letter == ')');
            depth == 0
        });
        let tail = end.map_or("{", |end| rest[end + 1..].trim_start());
        let Some((kind, _)) = tail.split_once(';').filter(|(kind, _)| !kind.contains('{')) else {
            continue;
        };
        if name.starts_with(prefix) {
            let answer = match kind.strip_prefix("->").map(str::trim) {
                None => Answer::Nothing,
                Some(kind) if kind.starts_with('*') => Answer::Pointer,
                Some(_) => Answer::Code,
            };
            functions.push((name.to_string(), answer));
        }
    }
    functions
}

/// A library, in Rust, with these functions, each of which fails.
pub(crate) fn stub_source(library: &Library, functions: &[(String, Answer)]) -> String {
    let mut source = String::from(
        "#![no_std]\n#[panic_handler]\nfn panic(_: &core::panic::PanicInfo) -> ! { loop {} }\n",
    );
    for (name, answer) in functions {
        let (kind, value) = match (name.as_str(), answer) {
            ("ncclGetErrorString", _) => ("*const u8", STUB_ERROR),
            ("ncclGetLastError", _) => ("*const u8", STUB_REASON),
            (_, Answer::Code) => ("i32", library.stub_code),
            (_, Answer::Pointer) => ("*const u8", "core::ptr::null()"),
            (_, Answer::Nothing) => ("()", "()"),
        };
        source +=
            &format!("#[unsafe(no_mangle)] extern \"C\" fn {name}() -> {kind} {{ {value} }}\n");
    }
    source
}

const STUB_ERROR: &str = r#"c"there is no NCCL, only an import stub".as_ptr().cast()"#;
const STUB_REASON: &str = r#"c"this is the import stub that was made because no libnccl.so.2 was \
    found when the program was built, and all that it does is fail. Put the folder of a real \
    libnccl.so.2 on LD_LIBRARY_PATH, or set NCCL_HOME and build again".as_ptr().cast()"#;

/// A stub in the making.
struct Stub<'a> {
    library: &'static Library,
    triple: &'a str,
    source: PathBuf,
    file: PathBuf,
    child: std::io::Result<std::process::Child>,
}

/// Starts to make a stub, unless a real file serves at run time.
fn start_stub<'a>(
    library: &'static Library,
    search: &Search,
    context: &'a Context,
) -> Result<Option<Stub<'a>>, String> {
    if search
        .found
        .as_ref()
        .is_some_and(|found| !found.toolkit_stub)
    {
        return Ok(None);
    }
    println!("cargo::rerun-if-changed={}", library.declarations);
    let text = fs::read_to_string(library.declarations)
        .map_err(|error| format!("{} cannot be read: {error}", library.declarations))?;
    let functions = declared_functions(&text, library.prefix);
    if functions.is_empty() {
        return Err(format!(
            "{} declares no function: what would a stub have?",
            library.declarations
        ));
    }
    let source = context.out.join(format!("{}_stub.rs", library.name));
    write(&source, &stub_source(library, &functions))?;
    let file = context
        .out
        .join("run")
        .join(library.name)
        .join(library.soname);
    make_folder(parent(&file))?;

    let flags = env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    let mut arguments = linker_arguments(env::var("RUSTC_LINKER").ok().as_deref(), &flags);
    arguments.push("-Clink-arg=-nostdlib".into());
    arguments.push(format!("-Clink-arg=-Wl,-soname,{}", library.soname));
    let child = rustc(&context.triple, &source, &file, &arguments).spawn();
    Ok(Some(Stub {
        library,
        triple: &context.triple,
        source,
        file,
        child,
    }))
}

impl Stub<'_> {
    /// Waits for it. Where the project's linker could not do it, the one that rustc brings may.
    fn finish(self) -> (PathBuf, Result<(), String>) {
        let output = match self.child.and_then(|child| child.wait_with_output()) {
            Ok(output) if output.status.success() => return (self.file, Ok(())),
            Ok(output) => output,
            Err(error) => return (self.file, Err(format!("rustc cannot be run: {error}"))),
        };
        let soname = format!("-Clink-arg=-soname={}", self.library.soname);
        let own = [
            "-Clinker=rust-lld".into(),
            "-Clinker-flavor=ld.lld".into(),
            soname,
        ];
        let second = rustc(self.triple, &self.source, &self.file, &own).output();
        if second.is_ok_and(|output| output.status.success()) {
            return (self.file, Ok(()));
        }
        let text = String::from_utf8_lossy(&output.stderr);
        let line = text
            .lines()
            .find(|line| line.starts_with("error"))
            .unwrap_or("rustc failed");
        (self.file, Err(line.to_string()))
    }
}

fn rustc(triple: &str, source: &Path, file: &Path, arguments: &[String]) -> Command {
    let mut rustc = Command::new(env::var_os("RUSTC").unwrap_or("rustc".into()));
    rustc.args([
        "--edition=2024",
        "--crate-type=cdylib",
        "--crate-name=stub",
        "--target",
        triple,
    ]);
    rustc
        .args(["-Cpanic=abort", "-Copt-level=1", "-Cstrip=symbols"])
        .args(arguments);
    rustc
        .arg("-o")
        .arg(file)
        .arg(source)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    rustc
}

/// The choice of a linker, from cargo's settings and the flags; other flags may not suit a stub.
pub(crate) fn linker_arguments(linker: Option<&str>, encoded_flags: &str) -> Vec<String> {
    let mut arguments = Vec::new();
    if let Some(linker) = linker {
        arguments.push(format!("-Clinker={linker}"));
    }
    // One word or two, and the last one counts.
    for flag in encoded_flags.replace("-C\x1f", "-C").split('\x1f') {
        if flag.starts_with("-Clinker=") || flag.starts_with("-Clinker-flavor=") {
            arguments.push(flag.to_string());
        }
    }
    arguments
}

// ---- What cargo is told ----

/// Links `file` under a file name that nothing else has.
///
/// So no other folder on the linker's path comes between. And as cargo puts folders in `target`
/// before the user's own `LD_LIBRARY_PATH`, the soname in there would hide the real library.
fn link(library: &Library, file: &Path, named: bool, out: &Path) -> Result<(), String> {
    let own_name = format!("lib{}-link.so", library.name);
    let name = if named { &own_name } else { library.soname };
    println!("cargo::rustc-link-lib=dylib:+verbatim={name}");
    make_link(file, &out.join("link").join(name))
}

/// The folder where the loader finds the library, if it has to be told.
fn run_folder(library: &Library, found: &Found, out: &Path) -> Result<Option<PathBuf>, String> {
    if found.source == Source::LoaderCache {
        return Ok(None);
    }
    if found.file.ends_with(library.soname) {
        return Ok(Some(parent(&found.file).to_path_buf()));
    }
    let folder = out.join("run").join(library.name);
    make_link(&found.file, &folder.join(library.soname))?;
    Ok(Some(folder))
}

/// Names what another search depends on, and nothing that does not exist: cargo would never rest.
fn rerun_if_changed(search: &Search) {
    if let Some(found) = &search.found {
        println!("cargo::rerun-if-changed={}", found.file.display());
    }
    for path in &search.watch {
        // The system's own folders take long to walk, and the loader's cache tells of them.
        if !path.starts_with("/usr/lib") && !path.starts_with("/lib") {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
}

fn describe(library: &Library, search: &Search, report: &mut String) {
    let soname = library.soname;
    *report += &match &search.found {
        None => format!("{soname}: not found\n"),
        Some(found) => {
            let file = found.file.display();
            println!(
                "cargo::metadata={}={}",
                library.folder_key,
                parent(&found.file).display()
            );
            let why = match &found.source {
                Source::Variable(name) => format!("by {name}"),
                Source::LoaderCache => "where the dynamic loader finds it".into(),
                Source::SystemPlace => "in a place that systems use".into(),
            };
            let stub = if found.toolkit_stub {
                ", a toolkit's stub, to link with"
            } else {
                ""
            };
            format!("{soname}: {file} ({why}{stub})\n")
        }
    };
    for (place, why) in &search.tried {
        *report += &format!("  {} {why}\n", place.display());
    }
}

fn describe_header(found: &Found, report: &mut String) {
    let Some(header) = header_of(parent(&found.file)) else {
        *report += "nccl.h: none beside the library\n";
        return;
    };
    println!("cargo::rerun-if-changed={}", header.display());
    println!("cargo::metadata=INCLUDE_DIR={}", parent(&header).display());
    let version = fs::read_to_string(&header)
        .ok()
        .and_then(|text| header_version(&text));
    if let Some(version) = &version {
        println!("cargo::metadata=VERSION={version}");
    }
    let version = version.unwrap_or("no version".into());
    *report += &format!("nccl.h: {}, {version}\n", header.display());
}

// ---- Files ----

fn write(file: &Path, text: &str) -> Result<(), String> {
    fs::write(file, text).map_err(|error| format!("{} cannot be written: {error}", file.display()))
}

fn make_folder(folder: &Path) -> Result<(), String> {
    fs::create_dir_all(folder)
        .map_err(|error| format!("{} cannot be made: {error}", folder.display()))
}

fn make_link(to: &Path, link: &Path) -> Result<(), String> {
    make_folder(parent(link))?;
    symlink(to, link).map_err(|error| format!("{} cannot be made: {error}", link.display()))
}
