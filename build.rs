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
//!   Never empty, and free of commas (but for those of OUT_DIR, of which a warning tells):
//!   `cargo::rustc-link-arg=-Wl,-rpath,{it}` is all it takes.
//! - `DEP_NCCL_LIB_DIR`, `DEP_NCCL_CUDA_LIB_DIR`: the folders of the libraries, where found.
//! - `DEP_NCCL_INCLUDE_DIR`, `DEP_NCCL_VERSION`: the folder of the `nccl.h` that lies beside the
//!   library, and the version that it states (`2.27.3`).
//! - `DEP_NCCL_BINDING`: how the functions are bound (`linked`, `dlopen`, `emulated`).
//!
//! `build_report.txt` in `OUT_DIR` tells what was found, and where it was looked for.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio, exit};

#[path = "src/files.rs"]
pub(crate) mod files;
use files::*;

// A build script is compiled without optimization, and every generic function of the standard
// library anew with it: plain loops and few types keep that to a fraction of the time.

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
    /// What the functions of the import stub return, and what to do about it.
    pub(crate) stub_code: &'static str,
    pub(crate) stub_advice: &'static str,
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
    stub_advice: "put the folder of a real one on LD_LIBRARY_PATH, or set NCCL_HOME and build again",
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
    stub_advice: "install the NVIDIA driver, or start the container with access to the GPU",
    folder_key: "CUDA_LIB_DIR",
};

/// Where to look, for what machine, and where to put what is made.
pub(crate) struct Context<'a> {
    pub(crate) triple: String,
    pub(crate) arch: String,
    pub(crate) variable: &'a dyn Fn(&str) -> Option<OsString>,
    /// `/`, but for tests.
    pub(crate) root: &'a Path,
    /// What the file `LOADER_CACHE` holds there.
    pub(crate) cache: Vec<u8>,
    pub(crate) out: &'a Path,
}

pub(crate) const LOADER_CACHE: &str = "etc/ld.so.cache";

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
    /// The places that were passed over, a line each, with the reason.
    pub(crate) tried: String,
    /// Folders where it may yet appear.
    pub(crate) watch: Vec<PathBuf>,
}

/// What both searches come to.
#[derive(Default)]
struct Outcome {
    report: String,
    stub_folders: String,
    missing: String,
}

fn main() {
    let triple = setting("TARGET");
    tell("rerun-if-changed", "build.rs");
    // Set where the binding is that one: the feature, without the emulator.
    tell("rustc-check-cfg", "cfg(dlopen)");
    for library in &[&NCCL, &CUDA] {
        for name in &variable_names(library, &triple) {
            tell("rerun-if-env-changed", name);
        }
    }
    let out = setting("OUT_DIR");
    let out = Path::new(&out);
    let report_file = out.join("build_report.txt");
    if env::var_os("CARGO_FEATURE_EMULATOR").is_some() {
        tell("metadata=BINDING", "emulated");
        tell("metadata=RPATH", "$ORIGIN");
        return write(&report_file, "binding: emulated, nothing is linked\n");
    }
    if env::var_os("CARGO_FEATURE_DLOPEN").is_some() {
        tell("rustc-cfg", "dlopen");
        tell("metadata=BINDING", "dlopen");
        tell("metadata=RPATH", "$ORIGIN");
        let line =
            "binding: dlopen, nothing is linked: the libraries are opened at the first call\n";
        return write(&report_file, line);
    }
    tell("metadata=BINDING", "linked");
    let environment = env::var("CARGO_CFG_TARGET_ENV").unwrap_or_default();
    if setting("CARGO_CFG_TARGET_OS") != "linux" || environment != "gnu" {
        let line = format!("NCCL needs Linux with glibc: nothing is linked for {triple}");
        tell("warning", &line);
        tell("metadata=RPATH", "$ORIGIN");
        return write(&report_file, &line);
    }
    let features = env::var("CARGO_CFG_TARGET_FEATURE").unwrap_or_default();
    if position(features.as_bytes(), b"crt-static").is_some() {
        let line = "a program with glibc linked in (crt-static) crashes on shared libraries such as \
                    libnccl.so.2: drop that target feature";
        tell("warning", line);
    }
    if awkward(out) {
        let why = "a comma, a colon, a dollar sign or a line break";
        let line = format!(
            "OUT_DIR is {out:?}, which no run-time path can name for {why}: programs may not \
             link with what lies there, or not find it, so set CARGO_TARGET_DIR to another folder"
        );
        tell("warning", &line);
    }
    // Cargo keeps OUT_DIR. What an earlier run left here could be linked; all else stays, for the
    // programs that were built on it.
    let _ = fs::remove_dir_all(out.join("link"));
    let context = Context {
        triple,
        arch: setting("CARGO_CFG_TARGET_ARCH"),
        variable: &|name| env::var_os(name),
        root: Path::new("/"),
        cache: fs::read("/etc/ld.so.cache").unwrap_or_default(),
        out,
    };

    let nccl = find(&NCCL, &context).unwrap_or_else(|why| fail(&why));
    let cuda = find(&CUDA, &context).unwrap_or_else(|why| fail(&why));
    // Both at once: rustc takes longer than all the rest.
    let nccl_stub = start_stub(&NCCL, &nccl, &context);
    let cuda_stub = start_stub(&CUDA, &cuda, &context);

    tell("rustc-link-search=native", text(&out.join("link")));
    let mut outcome = Outcome::default();
    conclude(&NCCL, &nccl, nccl_stub, &context, &mut outcome);
    conclude(&CUDA, &cuda, cuda_stub, &context, &mut outcome);
    if let Some(found) = &nccl.found {
        describe_header(found, &context, &mut outcome.report);
    }
    if !outcome.missing.is_empty() {
        let sentence = "not found: an import stub stands in, whose calls fail";
        tell("warning", &format!("{} {sentence}", outcome.missing));
    }
    let folders = &*run_time_folders(&nccl, &cuda, &outcome.stub_folders, &context);
    let report = &*outcome.report;
    for argument in &["-Xlinker", "-rpath", "-Xlinker", folders] {
        tell("rustc-link-arg", argument);
    }
    tell("metadata=RPATH", folders);
    let triple = &context.triple;
    write(
        &report_file,
        &format!("target: {triple}\nbinding: linked\n{report}run-time folders: {folders}\n"),
    );
}

/// One of cargo's lines.
fn tell(key: &str, value: &str) {
    println!("cargo::{key}={value}");
}

fn fail(message: &str) -> ! {
    for line in message.split('\n') {
        tell("error", line);
    }
    exit(1)
}

/// A variable that cargo sets.
fn setting(name: &str) -> String {
    match env::var(name) {
        Ok(value) => value,
        Err(error) => fail(&format!("{name}: {error}")),
    }
}

fn append(list: &mut String, separator: &str, item: &str) {
    if !list.is_empty() && !item.is_empty() {
        *list += separator;
    }
    *list += item;
}

// ---- Where to look ----

/// The two names of the library's variable, in the order in which they count.
pub(crate) fn variable_names(library: &Library, triple: &str) -> [String; 2] {
    let mut own = String::new();
    for part in triple.split('-') {
        for piece in part.split('.') {
            append(&mut own, "_", piece);
        }
    }
    let plain = library.variable;
    [format!("{own}_{plain}").to_uppercase(), plain.to_string()]
}

/// The last of the folders that, where they exist, hold the driver's only right library.
const LAST_OF_THE_DRIVER: &str = "run/opengl-driver/lib";

/// The places where systems keep the two libraries; stubs come last.
pub(crate) fn system_folders(root: &Path, arch: &str) -> Vec<PathBuf> {
    let table = [
        // Where one of these exists, it holds the driver's only right library.
        "usr/lib/wsl/lib",
        "usr/local/nvidia/lib64",
        "usr/local/nvidia/lib",
        LAST_OF_THE_DRIVER,
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

/// Looks below the library's variable, then in the system.
pub(crate) fn find(library: &Library, context: &Context) -> Result<Search, String> {
    let mut search = Search::default();
    if let Some((name, home)) = home(library, context)? {
        let source = Source::Variable(name.clone());
        for folder in &installation_folders(&home, &context.arch) {
            look_into(folder, &source, library, context, &mut search);
            let is_home = folder.as_os_str() == home.as_os_str();
            if let Some(found) = &mut search.found {
                // Whoever names the folder of an NCCL means it, whatever its name. A libcuda in
                // `stubs` never is a driver.
                found.toolkit_stub &= !(library.strict && is_home);
            }
            if search.found.is_some() && library.strict || has_real(&search) {
                search.watch.clear();
                return Ok(search);
            }
            // A watched folder is walked on each build: the home only where it has no other.
            if folder.is_dir() && (!is_home || search.watch.is_empty()) {
                search.watch.push(folder.clone());
            }
        }
        if library.strict {
            return Err(nothing_below(library, &name, &home, &search));
        }
    }
    let cache = context.root.join(LOADER_CACHE);
    for file in &cached_files(&context.cache, library.soname) {
        let file = below(context.root, file);
        examine(file, &Source::LoaderCache, library, context, &mut search);
    }
    if cache.is_file() {
        search.watch.push(cache);
    }
    for folder in &system_folders(context.root, &context.arch) {
        if has_real(&search) {
            break;
        }
        look_into(folder, &Source::SystemPlace, library, context, &mut search);
    }
    Ok(search)
}

fn below(root: &Path, file: &str) -> PathBuf {
    root.join(file.strip_prefix("/").unwrap_or(file))
}

fn has_real(search: &Search) -> bool {
    matches!(&search.found, Some(found) if !found.toolkit_stub)
}

/// The variable that is set, and the folder that it names.
fn home(library: &Library, context: &Context) -> Result<Option<(String, PathBuf)>, String> {
    for name in &variable_names(library, &context.triple) {
        let value = (context.variable)(name).unwrap_or_default();
        let value = Path::new(&value);
        if value.as_os_str().is_empty() {
            continue;
        }
        let why = match fs::metadata(value) {
            _ if value.is_relative() => {
                "a relative path: cargo runs this script in a folder of its own, so give the full path"
                    .to_string()
            }
            Ok(metadata) if metadata.is_dir() => {
                return Ok(Some((name.clone(), carried(value, context))));
            }
            Ok(_) => format!("a file: name the folder that holds {}", library.soname),
            Err(error) => format!("which {}", reason(&error)),
        };
        return Err(format!("{name} is {}, {why}", value.display()));
    }
    Ok(None)
}

/// `folder`, through a link where cargo's lines or a list of run-time folders cannot carry it.
fn carried(folder: &Path, context: &Context) -> PathBuf {
    // Without a slash at the end.
    let folder = folder.components().as_path();
    if !awkward(folder) {
        return folder.to_path_buf();
    }
    let link = own_place(folder, context.out);
    if !link.is_symlink() {
        make_link(folder, &link);
    }
    link
}

fn awkward(path: &Path) -> bool {
    let mut awkward = path.to_str().is_none();
    for byte in path.as_os_str().as_encoded_bytes() {
        awkward |= matches!(byte, b'\n' | b'\r' | b',' | b':' | b'$');
    }
    awkward
}

/// A place in OUT_DIR that no other path gets: programs that were built for another stay whole.
fn own_place(path: &Path, out: &Path) -> PathBuf {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in path.as_os_str().as_encoded_bytes() {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    }
    out.join("home").join(format!("{hash:x}"))
}

fn nothing_below(library: &Library, name: &str, home: &Path, search: &Search) -> String {
    let (soname, home, tried) = (library.soname, home.display(), &search.tried);
    format!(
        "{name} is {home}, where no usable {soname} was found:\n{tried}set {name} to the folder \
         that holds {soname}, or to the one above its lib; or unset it"
    )
}

/// Takes the library in `folder`, or notes what is wrong.
///
/// A bad file under the soname is not passed over for its neighbour: the loader would take it.
fn look_into(
    folder: &Path,
    source: &Source,
    library: &Library,
    context: &Context,
    search: &mut Search,
) {
    let mut why = String::new();
    for name in &[library.soname, library.link_name] {
        let file = folder.join(name);
        match fs::symlink_metadata(&file) {
            Ok(_) => return examine(file, source, library, context, search),
            Err(error) if error.kind() == ErrorKind::NotFound && folder.is_dir() => {
                why = format!("has no {}", library.soname);
            }
            Err(error) => why = reason(&error),
        }
    }
    search.tried += &format!("  {} {why}\n", folder.display());
}

/// Takes a file, unless there is one as good, or notes what is wrong.
fn examine(
    file: PathBuf,
    source: &Source,
    library: &Library,
    context: &Context,
    search: &mut Search,
) {
    let named = match check(&file, library, context) {
        Ok(named) => named,
        Err(why) => {
            search.tried += &format!("  {} {why}\n", file.display());
            return;
        }
    };
    let toolkit_stub = is_stubs(parent(&file))
        || matches!(file.canonicalize(), Ok(real) if is_stubs(parent(&real)));
    // The loader would take a stub that its cache has, but no program gets far with it.
    let passed_over = toolkit_stub && matches!(source, Source::LoaderCache);
    let better = search.found.is_none() || !toolkit_stub && !has_real(search);
    if better && !passed_over {
        search.found = Some(Found {
            file,
            source: source.clone(),
            toolkit_stub,
            named,
        });
    }
}

fn parent(file: &Path) -> &Path {
    file.parent().unwrap_or(file)
}

/// The files that the dynamic loader's cache has under this name, the preferred one first; all that
/// suit every processor of the target where the name is empty.
pub(crate) fn cached_files<'a>(cache: &'a [u8], soname: &str) -> Vec<&'a str> {
    let magic = b"glibc-ld.so.cache1.1";
    let (header, entry_size) = (48, 24);
    // Older systems keep another table in front. Offsets count from where this one starts.
    let start = position(cache, magic).unwrap_or(cache.len());
    let cache = &cache[start..];
    let count = number(cache, magic.len(), 4) as usize;
    let mut files = Vec::new();
    let mut entry = header;
    while entry < header + count * entry_size && entry + entry_size <= cache.len() {
        let name = text_at(cache, number(cache, entry + 4, 4));
        let file = text_at(cache, number(cache, entry + 8, 4));
        let wanted = match soname {
            "" => number(cache, entry + 16, 8) == 0,
            soname => name == soname,
        };
        // A path that is no UTF-8 is no more than passed over.
        if wanted && !file.is_empty() {
            files.push(file);
        }
        entry += entry_size;
    }
    files
}

// ---- What a file is ----

/// Whether `file` can be linked for the target, and if so, whether it has a soname.
pub(crate) fn check(file: &Path, library: &Library, context: &Context) -> Result<bool, String> {
    match soname(file, &context.arch)? {
        None => Ok(false),
        Some(name) if name == library.soname => Ok(true),
        Some(name) => Err(format!(
            "calls itself {}, and programs would ask for that",
            if name.is_empty() {
                "nothing that can be read"
            } else {
                &name
            }
        )),
    }
}

/// The `nccl.h` that was installed with the library in this folder.
pub(crate) fn header_of(folder: &Path) -> Option<PathBuf> {
    if let Some(header) = header_near(folder) {
        return Some(header);
    }
    // The folder may be known by a link, which has other neighbours.
    match folder.canonicalize() {
        Ok(real) => header_near(&real),
        Err(_) => None,
    }
}

fn header_near(mut folder: &Path) -> Option<PathBuf> {
    if is_stubs(folder) {
        folder = parent(folder);
    }
    if text(folder).ends_with("-linux-gnu") {
        folder = parent(folder);
    }
    // Above anything but a `lib`, another installation may lie.
    let is_lib = match folder.file_name() {
        Some(name) => name.as_encoded_bytes().starts_with(b"lib"),
        None => false,
    };
    if is_lib && !is_header(&folder.join("include/nccl.h")) {
        folder = parent(folder);
    }
    let header = folder.join("include/nccl.h");
    if is_header(&header) {
        Some(header)
    } else {
        None
    }
}

fn is_header(file: &Path) -> bool {
    // The real ones have some 30 KiB.
    matches!(fs::metadata(file), Ok(metadata) if metadata.is_file() && metadata.len() <= 1 << 20)
}

/// The version that a `nccl.h` states.
pub(crate) fn header_version(text: &str) -> Option<String> {
    let mut version = String::new();
    for name in &["NCCL_MAJOR", "NCCL_MINOR", "NCCL_PATCH"] {
        append(&mut version, ".", defined_number(text, name)?);
    }
    Some(version)
}

fn defined_number<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    for line in text.split('\n') {
        let rest = line.strip_prefix("#define").unwrap_or_default();
        if let Some(value) = rest.trim_ascii().strip_prefix(name) {
            let value = value.trim_ascii();
            let mut end = 0;
            while end < value.len() && value.as_bytes()[end].is_ascii_digit() {
                end += 1;
            }
            if end > 0 {
                return Some(&value[..end]);
            }
        }
    }
    None
}

// ---- Import stubs ----

/// A library, in Rust, of the functions that a source file declares by `pub fn NAME(..) -> TYPE;`.
/// All fail, but for those that tell why. Empty where there is none.
pub(crate) fn stub_source(library: &Library, declarations: &str) -> String {
    let (soname, advice) = (library.soname, library.stub_advice);
    let reason = format!(
        "c\"this is an import stub: no {soname} was found when the program was built, nor now; \
         {advice}\".as_ptr().cast()"
    );
    let answer = format!("match text {{ Some(text) => {{ *text = {reason}; 0 }} None => 34 }}");
    let mut functions = String::new();
    // Of the declaration that is being read.
    let mut name = "";
    for line in declarations.split('\n') {
        let line = line.trim_ascii();
        if line.starts_with("//") {
            continue;
        }
        if let Some(rest) = line.strip_prefix("pub fn ") {
            name = &rest[..position(rest.as_bytes(), b"(").unwrap_or(0)];
        }
        if position(line.as_bytes(), b"{").is_some() {
            // Not a declaration, but a function with a body.
            name = "";
        }
        if !line.ends_with(';') || !name.starts_with(library.prefix) {
            continue;
        }
        // What comes after the parameters.
        let mut tail = line;
        while let Some(at) = position(tail.as_bytes(), b")") {
            tail = &tail[at + 1..];
        }
        let (parameters, kind, value) = match name {
            "ncclGetErrorString" => ("", "*const u8", &*reason),
            "ncclGetLastError" => ("", "*const u8", "c\"\".as_ptr().cast()"),
            "cuGetErrorString" => ("_: i32, text: Option<&mut *const u8>", "i32", &*answer),
            _ if tail == ";" => ("", "()", "()"),
            _ if position(tail.as_bytes(), b"*").is_some() => {
                ("", "*const u8", "core::ptr::null()")
            }
            _ => ("", "i32", library.stub_code),
        };
        functions += &format!(
            "#[unsafe(no_mangle)] extern \"C\" fn {name}({parameters}) -> {kind} {{ {value} }}\n"
        );
        name = "";
    }
    if functions.is_empty() {
        functions
    } else {
        format!("{STUB_START}{functions}")
    }
}

const STUB_START: &str = "#![no_std]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! { loop {} }
";

/// Starts to make a stub, unless a real file serves at run time. The linker that rustc brings is
/// quick, and knows every target.
fn start_stub(library: &Library, search: &Search, context: &Context) -> Option<Child> {
    if has_real(search) {
        return None;
    }
    let declarations = library.declarations;
    tell("rerun-if-changed", declarations);
    let text = match fs::read_to_string(declarations) {
        Ok(text) => text,
        Err(error) => fail(&format!("{declarations} cannot be read: {error}")),
    };
    let source = stub_source(library, &text);
    if source.is_empty() {
        let question = "what would a stub have?";
        fail(&format!("{declarations} declares no function: {question}"));
    }
    let file = stub_file(library, context);
    make_folder(parent(&file));
    write(&file.with_extension("rs"), &source);

    let mut rustc = rustc(&file, context);
    rustc.arg("-Clinker=rust-lld").arg("-Clinker-flavor=ld.lld");
    rustc.arg(&*format!("-Clink-arg=-soname={}", library.soname));
    rustc.stderr(Stdio::null()).spawn().ok()
}

fn stub_file(library: &Library, context: &Context) -> PathBuf {
    let folder = context.out.join("stub").join(library.name);
    folder.join(library.soname)
}

/// Waits for a stub. Where rustc has no linker of its own, as in some distributions, the project's
/// has to do.
fn finish_stub(
    started: Option<Child>,
    file: &Path,
    library: &Library,
    context: &Context,
) -> Result<(), String> {
    if let Some(mut child) = started {
        if matches!(child.wait(), Ok(status) if status.success()) {
            return Ok(());
        }
    }
    let mut rustc = rustc(file, context);
    let linker = env::var("RUSTC_LINKER").unwrap_or_default();
    let flags = env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    choose_linker(&mut rustc, &linker, &flags);
    rustc.arg("-Clink-arg=-nostdlib");
    rustc.arg(&*format!("-Clink-arg=-Wl,-soname,{}", library.soname));
    let output = match rustc.output() {
        Ok(output) => output,
        Err(error) => return Err(format!("rustc cannot be run: {error}")),
    };
    if output.status.success() {
        return Ok(());
    }
    for line in utf8(&output.stderr).split('\n') {
        if line.starts_with("error") {
            return Err(line.to_string());
        }
    }
    Err("rustc failed".to_string())
}

fn rustc(file: &Path, context: &Context) -> Command {
    let mut rustc = Command::new(env::var_os("RUSTC").unwrap_or("rustc".into()));
    rustc.arg("--edition=2024").arg("--crate-name=stub");
    rustc.arg("--crate-type=cdylib").arg("-Cpanic=abort");
    rustc.arg("--target").arg(&*context.triple);
    rustc.arg(&*file.with_extension("rs")).arg("-o").arg(file);
    // Standard output is cargo's.
    rustc.stdout(Stdio::null());
    rustc
}

/// The choice of a linker, from cargo's settings and the flags; other flags may not suit a stub.
pub(crate) fn choose_linker(rustc: &mut Command, linker: &str, encoded_flags: &str) {
    if !linker.is_empty() {
        rustc.arg(&*format!("-Clinker={linker}"));
    }
    // One word or two, and the last one counts.
    let mut before = "";
    for word in encoded_flags.split('\x1f') {
        let option = match before {
            "-C" => word,
            _ => word.strip_prefix("-C").unwrap_or_default(),
        };
        if option.starts_with("linker=") || option.starts_with("linker-flavor=") {
            rustc.arg(&*format!("-C{option}"));
        }
        before = word;
    }
}

// ---- What cargo is told ----

/// Says what was found of one library, and links it or its stub.
fn conclude(
    library: &Library,
    search: &Search,
    stub: Option<Child>,
    context: &Context,
    outcome: &mut Outcome,
) {
    describe(library, search, context, &mut outcome.report);
    if let Some(found) = &search.found {
        link(library, &found.file, found.named, context.out);
        if !found.toolkit_stub {
            return;
        }
    }
    let file = stub_file(library, context);
    if let Err(why) = finish_stub(stub, &file, library, context) {
        outcome.report += &format!("  no import stub could be made: {why}\n");
        let what = format!("no import stub for {}: {why}", library.soname);
        return tell("warning", &what);
    }
    outcome.report += &format!("  import stub: {}\n", text(&file));
    append(&mut outcome.missing, " and ", library.soname);
    append(&mut outcome.stub_folders, ":", text(parent(&file)));
    if search.found.is_none() {
        link(library, &file, true, context.out);
    }
}

/// Links `file` under a file name that nothing else has.
///
/// So no other folder on the linker's path comes between. And as cargo puts folders in `target`
/// before the user's own `LD_LIBRARY_PATH`, the soname in there would hide the real library.
fn link(library: &Library, file: &Path, named: bool, out: &Path) {
    let own_name = format!("lib{}-link.so", library.name);
    let name = if named { &own_name } else { library.soname };
    tell("rustc-link-lib=dylib:+verbatim", name);
    make_link(file, &out.join("link").join(name));
}

/// Where a program looks for its libraries at run time, joined by `:`.
///
/// The loader asks these folders before its own cache. So once a stub is among them, all that is
/// real must come before it: what the cache gave, then the system's folders and the cache's.
pub(crate) fn run_time_folders(
    nccl: &Search,
    cuda: &Search,
    stub_folders: &str,
    context: &Context,
) -> String {
    let mut list = run_folder(&NCCL, nccl, context.out);
    add_folder(&mut list, &run_folder(&CUDA, cuda, context.out));
    if !stub_folders.is_empty() {
        add_cached_folder(&mut list, nccl);
        add_cached_folder(&mut list, cuda);
        add_system(&mut list, context);
        append(&mut list, ":", stub_folders);
    }
    if list.is_empty() {
        // To the loader, an empty list is the working directory. The program's own is harmless.
        list += "$ORIGIN";
    }
    list
}

fn add_cached_folder(list: &mut String, search: &Search) {
    if let Some(found) = &search.found {
        if matches!(found.source, Source::LoaderCache) {
            add_real_folder(list, parent(&found.file));
        }
    }
}

fn add_system(list: &mut String, context: &Context) {
    for folder in &system_folders(context.root, &context.arch) {
        add_real_folder(list, folder);
        if folder.ends_with(LAST_OF_THE_DRIVER) {
            for file in &cached_files(&context.cache, "") {
                add_real_folder(list, parent(&below(context.root, file)));
            }
        }
    }
}

fn add_real_folder(list: &mut String, folder: &Path) {
    if !is_stubs(folder) && !awkward(folder) {
        add_folder(list, text(folder));
    }
}

fn add_folder(list: &mut String, folder: &str) {
    for old in list.split(':') {
        if old == folder {
            return;
        }
    }
    append(list, ":", folder);
}

/// The folder where the loader finds a real library; empty if it need not be told.
fn run_folder(library: &Library, search: &Search, out: &Path) -> String {
    let Some(found) = &search.found else {
        return String::new();
    };
    if found.toolkit_stub || matches!(found.source, Source::LoaderCache) {
        return String::new();
    }
    if found.file.ends_with(library.soname) {
        return text(parent(&found.file)).to_string();
    }
    let folder = own_place(&found.file, out);
    let link = folder.join(library.soname);
    if !link.is_symlink() {
        make_link(&found.file, &link);
    }
    text(&folder).to_string()
}

/// What another search depends on: nothing that does not exist, or cargo would never rest.
pub(crate) fn watched(search: &Search, context: &Context) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    for path in &search.watch {
        watch(path, context, &mut paths);
    }
    if let Some(found) = &search.found {
        paths.push(found.file.clone());
        if matches!(found.source, Source::Variable(_)) {
            // Installers keep the time of a file. That of its folder tells of a replacement.
            watch(parent(&found.file), context, &mut paths);
        }
    }
    paths
}

fn watch(path: &Path, context: &Context, paths: &mut Vec<PathBuf>) {
    // The loader's cache tells of the system's own folders.
    let inside = text(path)
        .strip_prefix(text(context.root))
        .unwrap_or_default();
    let inside = inside.strip_prefix("/").unwrap_or(inside);
    let system = inside.starts_with("usr/lib") || inside.starts_with("lib");
    let own = context.out.starts_with(path) || path.starts_with(context.out);
    if !system && !own && (!path.is_dir() || soon_walked(path)) {
        paths.push(path.to_path_buf());
    }
}

/// Whether a folder has no large ones inside: cargo walks all of it on each build.
fn soon_walked(folder: &Path) -> bool {
    let Ok(mut entries) = fs::read_dir(folder) else {
        return false;
    };
    while let Some(Ok(entry)) = entries.next() {
        if !is_small(&entry.path()) {
            return false;
        }
    }
    true
}

fn is_small(path: &Path) -> bool {
    let name = text(path);
    is_stubs(path) || name.ends_with("/pkgconfig") || name.ends_with("/cmake") || !path.is_dir()
}

/// Reports what was found, and tells what another search depends on.
fn describe(library: &Library, search: &Search, context: &Context, report: &mut String) {
    *report += library.soname;
    if let Some(found) = &search.found {
        let file = text(&found.file);
        tell(
            "metadata",
            &format!("{}={}", library.folder_key, text(parent(&found.file))),
        );
        let (why, name) = match &found.source {
            Source::Variable(name) => ("by ", name.as_str()),
            Source::LoaderCache => ("where the dynamic loader finds it", ""),
            Source::SystemPlace => ("in a place that systems use", ""),
        };
        let stub = if found.toolkit_stub {
            ", a toolkit's stub, to link with"
        } else {
            ""
        };
        *report += &format!(": {file} ({why}{name}{stub})\n");
    } else {
        *report += ": not found\n";
    }
    *report += &search.tried;
    for path in &watched(search, context) {
        tell("rerun-if-changed", text(path));
    }
}

fn describe_header(found: &Found, context: &Context, report: &mut String) {
    let Some(header) = header_of(parent(&found.file)) else {
        *report += "nccl.h: none beside the library\n";
        return;
    };
    let folder = carried(parent(&header), context);
    let header = folder.join("nccl.h");
    let contents = fs::read_to_string(&*header).unwrap_or_default();
    tell("rerun-if-changed", text(&header));
    tell("metadata=INCLUDE_DIR", text(&folder));
    let version = header_version(&contents);
    if let Some(version) = &version {
        tell("metadata=VERSION", version);
    }
    let version = version.as_deref().unwrap_or("no version");
    *report += &format!("nccl.h: {}, {version}\n", text(&header));
}

// ---- Files ----

/// A path as cargo's lines need it; [`carried`] lets no other in.
fn text(path: &Path) -> &str {
    path.to_str().unwrap_or_default()
}

fn write(file: &Path, text: &str) {
    must(fs::write(file, text), file, "written");
}

fn make_folder(folder: &Path) {
    must(fs::create_dir_all(folder), folder, "made");
}

fn make_link(to: &Path, link: &Path) {
    make_folder(parent(link));
    must(symlink(to, link), link, "made");
}

fn must(result: io::Result<()>, file: &Path, what: &str) {
    if let Err(error) = result {
        fail(&format!("{} cannot be {what}: {error}", file.display()));
    }
}
