//! The build script's own functions, on folders laid out like real installations.

#[allow(dead_code)]
#[path = "../build.rs"]
mod build_script;
mod support;

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use build_script::files::installation_folders;
use build_script::{
    CUDA, Context, Found, LOADER_CACHE, Library, NCCL, Search, Source, cached_files, check,
    choose_linker, find, header_of, header_version, run_time_folders, stub_source, system_folders,
    variable_names, watched,
};
use tempfile::TempDir;

const X86: (&str, &str) = ("x86_64-unknown-linux-gnu", "x86_64");
const ARM: (&str, &str) = ("aarch64-unknown-linux-gnu", "aarch64");

/// A machine of its own: a system below `root`, and variables.
struct Machine {
    folder: TempDir,
    target: (&'static str, &'static str),
    variables: HashMap<String, OsString>,
}

impl Machine {
    fn new(target: (&'static str, &'static str)) -> Machine {
        let folder = TempDir::new().unwrap();
        for part in ["root", "out"] {
            fs::create_dir(folder.path().join(part)).unwrap();
        }
        Machine {
            folder,
            target,
            variables: HashMap::new(),
        }
    }

    fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.folder.path().join(path)
    }

    fn set(&mut self, name: &str, value: impl AsRef<OsStr>) {
        self.variables
            .insert(name.to_owned(), value.as_ref().to_owned());
    }

    /// Writes a file and the folders above it.
    fn put(&self, path: impl AsRef<Path>, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        path
    }

    /// A sound library for this machine under its soname.
    fn put_library(&self, folder: impl AsRef<Path>, library: &Library) -> PathBuf {
        let file = folder.as_ref().join(library.soname);
        self.put(file, self.elf().named(library.soname))
    }

    fn elf(&self) -> Elf {
        Elf {
            machine: if self.target.1 == "x86_64" { 62 } else { 183 },
            ..Elf::default()
        }
    }

    fn with_context<T>(&self, work: impl FnOnce(&Context) -> T) -> T {
        work(&Context {
            triple: self.target.0.to_owned(),
            arch: self.target.1.to_owned(),
            variable: &|name| self.variables.get(name).cloned(),
            root: &self.path("root"),
            cache: fs::read(self.path("root").join(LOADER_CACHE)).unwrap_or_default(),
            out: &self.path("out"),
        })
    }

    fn find(&self, library: &Library) -> Result<Search, String> {
        self.with_context(|context| find(library, context))
    }

    fn found(&self, library: &Library) -> Found {
        self.find(library).unwrap().found.unwrap()
    }

    /// The run-time folders, with `stub` where a library is not found.
    fn run_time_folders(&self, stub: &str) -> Vec<String> {
        let [nccl, cuda] = [&NCCL, &CUDA].map(|library| self.find(library).unwrap());
        let list = self.with_context(|context| run_time_folders(&nccl, &cuda, stub, context));
        list.split(':').map(str::to_owned).collect()
    }

    fn watched(&self, library: &Library) -> Vec<PathBuf> {
        let search = self.find(library).unwrap();
        self.with_context(|context| watched(&search, context))
    }

    fn check(&self, file: &Path) -> Result<bool, String> {
        self.with_context(|context| check(file, &NCCL, context))
    }
}

/// The smallest file that passes for a shared library: a header, two segments, a dynamic section
/// with its names, and a section table at the end.
#[derive(Clone, Copy)]
struct Elf {
    class: u8,
    order: u8,
    kind: u16,
    machine: u16,
}

impl Default for Elf {
    fn default() -> Elf {
        Elf {
            class: 2,
            order: 1,
            kind: 3,
            machine: 62,
        }
    }
}

impl Elf {
    fn named(self, soname: &str) -> Vec<u8> {
        self.bytes(Some(soname))
    }

    fn bytes(self, soname: Option<&str>) -> Vec<u8> {
        const ADDRESS: u64 = 0x1000;
        const NAMES: u64 = 64 + 2 * 56 + 3 * 16;
        let names = format!("\0{}\0", soname.unwrap_or("unused"));
        let end = NAMES + names.len() as u64;
        let numbers = |file: &mut Vec<u8>, numbers: &[u64]| {
            for number in numbers {
                file.extend(number.to_le_bytes());
            }
        };

        let mut file = vec![0x7f, b'E', b'L', b'F', self.class, self.order, 1];
        file.resize(16, 0);
        file.extend(self.kind.to_le_bytes());
        file.extend(self.machine.to_le_bytes());
        file.extend(1u32.to_le_bytes());
        numbers(&mut file, &[0, 64, end]);
        file.extend(0u32.to_le_bytes());
        for half in [64u16, 56, 2, 64, 1, 0] {
            file.extend(half.to_le_bytes());
        }
        for (kind, offset, size) in [(1u64, 0, end), (2, 64 + 2 * 56, 3 * 16)] {
            // The kind, and no flags.
            let address = ADDRESS + offset;
            numbers(
                &mut file,
                &[kind, offset, address, address, size, size, 4096],
            );
        }
        let name_tag = if soname.is_some() { 14 } else { 0x7000_0000 };
        numbers(&mut file, &[name_tag, 1, 5, ADDRESS + NAMES, 0, 0]);
        file.extend(names.as_bytes());
        file.resize(file.len() + 64, 0);
        file
    }
}

/// A loader's cache in the form of glibc 2.32 and later.
fn loader_cache<T: AsRef<[u8]>>(entries: &[(&str, T)]) -> Vec<u8> {
    let mut strings = Vec::new();
    let mut table = Vec::new();
    let strings_at = 48 + 24 * entries.len();
    for (name, file) in entries {
        let mut offsets = Vec::new();
        for text in [name.as_bytes(), file.as_ref()] {
            offsets.push((strings_at + strings.len()) as u32);
            strings.extend(text);
            strings.push(0);
        }
        table.extend(0x303u32.to_le_bytes());
        table.extend(offsets[0].to_le_bytes());
        table.extend(offsets[1].to_le_bytes());
        table.extend([0; 12]);
    }
    let mut cache = b"glibc-ld.so.cache1.1".to_vec();
    cache.extend((entries.len() as u32).to_le_bytes());
    cache.extend((strings.len() as u32).to_le_bytes());
    cache.resize(48, 0);
    [cache, table, strings].concat()
}

// ---- The variables ----

#[test]
fn the_targets_own_variable_comes_first_and_an_empty_one_is_unset() {
    assert_eq!(
        variable_names(&NCCL, ARM.0),
        ["AARCH64_UNKNOWN_LINUX_GNU_NCCL_HOME", "NCCL_HOME"]
    );
    assert_eq!(
        variable_names(&CUDA, "thumbv7em.x-none"),
        ["THUMBV7EM_X_NONE_CUDA_PATH", "CUDA_PATH"]
    );

    let mut machine = Machine::new(ARM);
    machine.put_library("own/lib", &NCCL);
    machine.put_library("plain/lib", &NCCL);
    machine.set("NCCL_HOME", machine.path("plain"));
    assert_eq!(
        machine.found(&NCCL).file,
        machine.path("plain/lib/libnccl.so.2")
    );
    machine.set("AARCH64_UNKNOWN_LINUX_GNU_NCCL_HOME", machine.path("own"));
    // Another target's variable says nothing.
    machine.set("X86_64_UNKNOWN_LINUX_GNU_NCCL_HOME", "/nowhere");
    let found = machine.found(&NCCL);
    assert_eq!(found.file, machine.path("own/lib/libnccl.so.2"));
    assert_eq!(
        found.source,
        Source::Variable("AARCH64_UNKNOWN_LINUX_GNU_NCCL_HOME".to_owned())
    );
    machine.set("AARCH64_UNKNOWN_LINUX_GNU_NCCL_HOME", "");
    assert_eq!(
        machine.found(&NCCL).file,
        machine.path("plain/lib/libnccl.so.2")
    );
    machine.set("NCCL_HOME", "");
    assert_eq!(machine.find(&NCCL).unwrap().found, None);
}

#[test]
fn a_variable_that_names_no_folder_is_refused_with_a_sentence() {
    let mut machine = Machine::new(X86);
    let file = machine.put("file", "");
    for library in [&NCCL, &CUDA] {
        for (value, sentence) in [
            (PathBuf::from("nccl"), "is nccl, a relative path"),
            (PathBuf::from("./nccl"), "so give the full path"),
            (machine.path("none"), "none, which does not exist"),
            (file.clone(), "file, a file: name the folder that holds lib"),
            (file.join("lib"), "lib, which cannot be read: "),
        ] {
            machine.set(library.variable, &value);
            let error = machine.find(library).unwrap_err();
            assert!(error.starts_with(library.variable), "{error}");
            assert!(error.contains(sentence), "{error}");
        }
    }
}

#[test]
fn every_layout_of_an_installation_is_found() {
    for (target, layouts) in [
        (
            X86,
            [
                "lib",
                "lib64",
                "lib/x86_64-linux-gnu",
                "targets/x86_64-linux/lib",
                "",
                "lib64/stubs",
                "lib/stubs",
                "targets/x86_64-linux/lib/stubs",
            ],
        ),
        (
            ARM,
            [
                "lib",
                "lib64",
                "lib/aarch64-linux-gnu",
                "targets/sbsa-linux/lib",
                "targets/aarch64-linux/lib",
                "",
                "lib64/stubs",
                "targets/sbsa-linux/lib/stubs",
            ],
        ),
    ] {
        for layout in layouts {
            for name in ["libnccl.so.2", "libnccl.so"] {
                let mut machine = Machine::new(target);
                let folder: PathBuf = Path::new("home").join(layout).components().collect();
                let file = machine.put(folder.join(name), machine.elf().named("libnccl.so.2"));
                machine.set("NCCL_HOME", machine.path("home"));
                let found = machine.found(&NCCL);
                assert_eq!(found.file.as_os_str(), file.as_os_str());
                assert_eq!(found.source, Source::Variable("NCCL_HOME".to_owned()));
                assert_eq!(found.toolkit_stub, layout.ends_with("stubs"));
                assert!(found.named);
                // The folder itself: whoever names it means it, even one called `stubs`.
                machine.set("NCCL_HOME", file.parent().unwrap());
                let found = machine.found(&NCCL);
                assert_eq!((found.file, found.toolkit_stub), (file, false));
            }
        }
    }
}

#[test]
fn a_folder_beside_that_holds_nothing_or_another_machines_file_does_not_count() {
    let mut machine = Machine::new(X86);
    machine.put("home/lib/libother.so", "");
    machine.put("home/include/nccl.h", "");
    let i386 = Elf {
        class: 1,
        machine: 3,
        ..Elf::default()
    };
    machine.put("home/lib64/libnccl.so.2", i386.named("libnccl.so.2"));
    let file = machine.put_library("home/targets/x86_64-linux/lib", &NCCL);
    machine.set("NCCL_HOME", machine.path("home"));
    let search = machine.find(&NCCL).unwrap();
    assert_eq!(search.found.unwrap().file, file);
    let home = machine.path("home").display().to_string();
    assert_eq!(
        search.tried,
        format!(
            "  {home}/lib has no libnccl.so.2\n  {home}/lib64/libnccl.so.2 is a 32-bit library, \
             which a program for x86_64 cannot use\n  \
             {home}/lib/x86_64-linux-gnu does not exist\n"
        )
    );
}

#[test]
fn odd_paths_are_served() {
    for (name, carried) in [
        ("with spaces in it", false),
        ("straße", false),
        ("with,comma", true),
        ("with:colon", true),
        ("with\nnewline", true),
        ("with$dollar", true),
    ] {
        check_odd_path(OsStr::new(name), carried);
    }
    check_odd_path(&OsString::from_vec(b"not \xff UTF-8".to_vec()), true);
}

fn check_odd_path(name: &OsStr, carried: bool) {
    let mut machine = Machine::new(X86);
    let file = machine.put_library(Path::new(name).join("lib"), &NCCL);
    let mut value = machine.path(name).into_os_string();
    for ending in ["", "/", "//."] {
        value.push(ending);
        machine.set("NCCL_HOME", &value);
        let found = machine.found(&NCCL).file;
        let text = found.to_str().unwrap();
        assert!(!text.contains("//"), "{text}");
        assert!(!text.contains([',', ':', '\n', '$']), "{text}");
        assert_eq!(found.canonicalize().unwrap(), file.canonicalize().unwrap());
        if carried {
            assert!(found.starts_with(machine.path("out")), "{text}");
        } else {
            assert_eq!(found.as_os_str(), file.as_os_str());
        }
    }
}

#[test]
fn a_program_built_for_another_home_keeps_its_folders() {
    let mut machine = Machine::new(X86);
    let mut folders = Vec::new();
    for home in ["a,b", "c,d"] {
        let elf = machine.elf().named("libnccl.so.2");
        machine.put(format!("{home}/libnccl.so"), elf);
        machine.set("NCCL_HOME", machine.path(home));
        let list = machine.run_time_folders("");
        assert_eq!(list, machine.run_time_folders(""), "a second run");
        folders.push(list.concat());
    }
    for (folder, home) in folders.iter().zip(["a,b", "c,d"]) {
        let file = Path::new(folder).join("libnccl.so.2");
        assert_eq!(
            file.canonicalize().unwrap(),
            machine
                .path(home)
                .canonicalize()
                .unwrap()
                .join("libnccl.so")
        );
    }
}

#[test]
fn an_empty_installation_is_an_error_that_lists_every_path_and_is_never_passed_over() {
    let mut machine = Machine::new(X86);
    let system = machine.put_library("root/usr/lib64", &NCCL);
    fs::create_dir(machine.path("home")).unwrap();
    machine.put("home/lib/libnccl_static.a", "");
    machine.put("home/lib64/libnccl.so.2", "GROUP ( libnccl.so.2.27.3 )");
    // One that cannot be looked into is not said to lack the library.
    fs::create_dir(machine.path("home/targets")).unwrap();
    symlink("x86_64-linux", machine.path("home/targets/x86_64-linux")).unwrap();
    machine.set("NCCL_HOME", machine.path("home"));
    let error = machine.find(&NCCL).unwrap_err();
    let home = machine.path("home").display().to_string();
    let lines: Vec<&str> = error.lines().collect();
    assert_eq!(
        lines[0],
        format!("NCCL_HOME is {home}, where no usable libnccl.so.2 was found:")
    );
    let mut expected = vec![
        format!("  {home}/lib has no libnccl.so.2"),
        format!(
            "  {home}/lib64/libnccl.so.2 is a text file, a linker script: \
             name the folder of the library it leads to"
        ),
    ];
    expected.push(format!("  {home}/lib/x86_64-linux-gnu does not exist"));
    let looped = std::io::Error::from_raw_os_error(40);
    expected.push(format!(
        "  {home}/targets/x86_64-linux/lib cannot be read: {looped}"
    ));
    expected.push(format!("  {home} has no libnccl.so.2"));
    for folder in ["lib/stubs", "lib64/stubs", "lib/x86_64-linux-gnu/stubs"] {
        expected.push(format!("  {home}/{folder} does not exist"));
    }
    expected.push(format!(
        "  {home}/targets/x86_64-linux/lib/stubs cannot be read: {looped}"
    ));
    expected.push(format!("  {home}/stubs does not exist"));
    assert_eq!(lines[1..lines.len() - 1], expected);
    assert_eq!(
        *lines.last().unwrap(),
        "set NCCL_HOME to the folder that holds libnccl.so.2, or to the one above its lib; or \
         unset it"
    );

    machine.set("NCCL_HOME", "");
    assert_eq!(machine.found(&NCCL).file, system);
}

// ---- The system ----

#[test]
fn every_place_of_a_system_is_found() {
    for (target, places) in [
        (
            X86,
            [
                "/usr/lib/x86_64-linux-gnu",
                "/usr/local/cuda/targets/x86_64-linux/lib",
                "/usr/lib/x86_64-linux-gnu/nvidia/current",
            ],
        ),
        (
            ARM,
            [
                "/usr/lib/aarch64-linux-gnu",
                "/usr/local/cuda/targets/sbsa-linux/lib",
                "/usr/local/cuda/targets/aarch64-linux/lib",
            ],
        ),
    ] {
        let common = [
            "/usr/lib64",
            "/usr/lib",
            "/usr/local/lib",
            "/usr/local/lib64",
            "/usr/local/cuda/lib64",
            "/opt/cuda/lib64",
            "/usr/lib/wsl/lib",
            "/usr/local/nvidia/lib",
            "/usr/local/nvidia/lib64",
            "/run/opengl-driver/lib",
        ];
        for place in places.iter().chain(&common) {
            for library in [&NCCL, &CUDA] {
                let machine = Machine::new(target);
                let file = machine.put_library(format!("root{place}"), library);
                let found = machine.found(library);
                assert_eq!(found.file, file);
                assert_eq!(found.source, Source::SystemPlace);
                assert!(!found.toolkit_stub);
            }
        }
    }
}

#[test]
fn the_systems_places_are_those_of_the_target_without_repeats_and_with_stubs_last() {
    for (arch, other) in [("x86_64", "aarch64"), ("aarch64", "x86_64")] {
        let folders = system_folders(Path::new("/"), arch);
        let text = format!("{folders:?}");
        assert!(
            !text.contains(other) && !text.contains("{") && !text.contains("compat"),
            "{text}"
        );
        let installation = installation_folders(Path::new("/opt/nccl"), arch);
        for folders in [&folders, &installation] {
            let distinct: HashSet<_> = folders.iter().collect();
            assert_eq!(distinct.len(), folders.len(), "{folders:?}");
            let stubs: Vec<bool> = folders.iter().map(|path| path.ends_with("stubs")).collect();
            assert!(stubs.is_sorted() && stubs.last() == Some(&true), "{text}");
        }
    }
}

#[test]
fn what_the_dynamic_loader_would_take_comes_before_the_other_places() {
    let machine = Machine::new(X86);
    machine.put_library("root/usr/lib64", &NCCL);
    let listed = machine.put_library("root/srv/nccl", &NCCL);
    machine.put("root/srv/arm/libnccl.so.2", {
        let arm = Elf {
            machine: 183,
            ..Elf::default()
        };
        arm.named("libnccl.so.2")
    });
    let cache = loader_cache(&[
        ("libnccl.so", "/usr/lib64/libnccl.so"),
        ("libnccl.so.2", "/srv/gone/libnccl.so.2"),
        ("libnccl.so.2", "/srv/arm/libnccl.so.2"),
        ("libnccl.so.2", "/srv/nccl/libnccl.so.2"),
        ("libnccl.so.2", "/usr/lib64/libnccl.so.2"),
    ]);
    let cache_file = machine.put("root/etc/ld.so.cache", &cache);
    let search = machine.find(&NCCL).unwrap();
    assert_eq!(search.watch, [cache_file]);
    let root = machine.path("root").display().to_string();
    assert_eq!(
        search.tried,
        format!(
            "  {root}/srv/gone/libnccl.so.2 does not exist\n  {root}/srv/arm/libnccl.so.2 \
             is built for aarch64, and the program for x86_64\n"
        )
    );
    let found = search.found.unwrap();
    assert_eq!((found.file, found.source), (listed, Source::LoaderCache));

    // A path that is no UTF-8 does not hide those behind it.
    let odd: [(&str, &[u8]); 3] = [
        ("libodd.so.1", b"/srv/\xff/libodd.so.1"),
        ("libnccl.so.2", b"/srv/\xff/libnccl.so.2"),
        ("libnccl.so.2", b"/srv/nccl/libnccl.so.2"),
    ];
    let odd = loader_cache(&odd);
    assert_eq!(
        cached_files(&odd, "libnccl.so.2"),
        ["/srv/nccl/libnccl.so.2"]
    );

    // Older systems put a table of another form in front.
    let mut older = b"ld.so-1.7.0\0\x02\0\0\0".to_vec();
    older.resize(64, 7);
    older.extend(&cache);
    assert_eq!(
        cached_files(&older, "libnccl.so.2"),
        cached_files(&cache, "libnccl.so.2")
    );
    assert_eq!(
        cached_files(&cache, "libnccl.so"),
        ["/usr/lib64/libnccl.so"]
    );
    for length in 0..cache.len() {
        assert!(cached_files(&cache[..length], "libnccl.so.2").len() <= 4);
    }

    // This system's own, where it has one.
    if let Ok(cache) = fs::read("/etc/ld.so.cache") {
        let files = cached_files(&cache, "libc.so.6");
        assert!(!files.is_empty() && files.iter().all(|file| file.ends_with("/libc.so.6")));
    }
}

#[test]
fn no_stub_and_no_other_folder_hides_what_the_loader_would_take() {
    let mut machine = Machine::new(X86);
    let root = machine.path("root").display().to_string();
    let odd = "/srv/a,b";
    for folder in ["/opt/nccl", "/srv/later", "/srv/stubs", odd] {
        fs::create_dir_all(format!("{root}{folder}")).unwrap();
    }
    machine.put_library("root/opt/nccl", &NCCL);
    machine.put_library("root/usr/local/lib", &NCCL);
    let mut cache = loader_cache(&[
        ("libz.so.1", "/srv/later/libz.so.1".to_owned()),
        (
            "libz.so.1",
            "/srv/glibc-hwcaps/x86-64-v4/libz.so.1".to_owned(),
        ),
        ("libz.so.1", "/srv/stubs/libz.so.1".to_owned()),
        ("libz.so.1", format!("{odd}/libz.so.1")),
        ("libnccl.so.2", "/opt/nccl/libnccl.so.2".to_owned()),
        ("libnccl.so.2", "/usr/local/lib/libnccl.so.2".to_owned()),
    ]);
    // The second entry is for some processors only.
    cache[48 + 24 + 16 + 7] = 0x40;
    machine.put("root/etc/ld.so.cache", cache);

    // Only the driver is missing.
    let below = |folder: &str| format!("{root}/{folder}");
    let mut expected = [
        "opt/nccl",
        "usr/lib/wsl/lib",
        "usr/local/nvidia/lib64",
        "usr/local/nvidia/lib",
        "run/opengl-driver/lib",
        "srv/later",
        "usr/local/lib",
    ]
    .map(below)
    .to_vec();
    for folder in system_folders(&machine.path("root"), "x86_64") {
        let folder = folder.display().to_string();
        if !folder.ends_with("stubs") && !expected.contains(&folder) {
            expected.push(folder);
        }
    }
    expected.extend(["/stub/a".to_owned(), "/stub/b".to_owned()]);
    assert_eq!(machine.run_time_folders("/stub/a:/stub/b"), expected);

    // A library that was asked for comes first.
    machine.put_library("home", &NCCL);
    machine.set("NCCL_HOME", machine.path("home"));
    expected.remove(0);
    expected.insert(0, machine.path("home").display().to_string());
    let folders = machine.run_time_folders("/stub/a:/stub/b");
    assert_eq!(folders[..6], expected[..6]);
    machine.variables.clear();

    // Nothing is missing: the loader needs no help, and gets an own folder rather than an empty list.
    machine.put_library("root/opt/nccl", &CUDA);
    let cache = loader_cache(&[
        ("libnccl.so.2", "/opt/nccl/libnccl.so.2"),
        ("libcuda.so.1", "/opt/nccl/libcuda.so.1"),
    ]);
    machine.put("root/etc/ld.so.cache", cache);
    assert_eq!(machine.run_time_folders(""), ["$ORIGIN"]);

    // Found where the loader does not look.
    fs::remove_file(machine.path("root/etc/ld.so.cache")).unwrap();
    let driver = machine.put_library("root/usr/local/nvidia/lib64", &CUDA);
    let folders = [
        below("usr/local/lib"),
        driver.parent().unwrap().display().to_string(),
    ];
    assert_eq!(machine.run_time_folders(""), folders);
}

#[test]
fn only_folders_that_are_soon_walked_are_watched_for_a_change() {
    let mut machine = Machine::new(X86);
    let cache_file = [machine.put("root/etc/ld.so.cache", "")];

    // The time of the folder tells of a file that was replaced by an older one.
    let file = machine.put_library("home/lib", &NCCL);
    machine.set("NCCL_HOME", machine.path("home"));
    for folder in ["stubs", "pkgconfig", "cmake"] {
        fs::create_dir(machine.path("home/lib").join(folder)).unwrap();
    }
    assert_eq!(
        machine.watched(&NCCL),
        [file.clone(), machine.path("home/lib")]
    );
    fs::create_dir(machine.path("home/lib/python3.12")).unwrap();
    assert_eq!(machine.watched(&NCCL), [file]);
    // Not the system's folders, which the loader's cache tells of.
    for folder in [
        "usr/lib",
        "usr/lib64",
        "usr/lib/x86_64-linux-gnu",
        "lib",
        "lib64",
    ] {
        let file = machine.put_library(Path::new("root").join(folder), &NCCL);
        machine.set("NCCL_HOME", file.parent().unwrap());
        assert_eq!(machine.watched(&NCCL), [file]);
    }
    for home in ["root", "root/usr"] {
        machine.set("CUDA_PATH", machine.path(home));
        assert_eq!(machine.watched(&CUDA), cache_file, "{home}");
    }

    // Nor a folder that the script itself changes.
    let lib = machine.path("out/lib");
    fs::create_dir_all(&lib).unwrap();
    for home in [machine.path(""), machine.path("out")] {
        machine.set("CUDA_PATH", &home);
        let watched = machine.watched(&CUDA);
        assert_eq!(watched, cache_file, "{home:?}");
    }
    let toolkit = machine.path("toolkit");
    fs::create_dir(&toolkit).unwrap();
    machine.set("CUDA_PATH", &toolkit);
    assert_eq!(
        machine.watched(&CUDA),
        [&[toolkit], &cache_file[..]].concat()
    );
}

#[test]
fn a_real_driver_comes_before_a_toolkits_stub() {
    let mut machine = Machine::new(X86);
    machine.put("toolkit/lib64/libcudart.so.13", "");
    machine.set("CUDA_PATH", machine.path("toolkit"));
    let search = machine.find(&CUDA).unwrap();
    assert_eq!(search.found, None);
    // The toolkit may get one, but it is not walked as a whole.
    assert_eq!(search.watch, [machine.path("toolkit/lib64")]);

    let elf = machine.elf().named("libcuda.so.1");
    let stub = machine.put("toolkit/lib64/stubs/libcuda.so", &elf);
    let found = machine.found(&CUDA);
    assert_eq!((&found.file, found.toolkit_stub), (&stub, true));

    let system_stub = machine.put("root/usr/local/cuda/lib64/stubs/libcuda.so", &elf);
    assert_eq!(machine.found(&CUDA).file, stub);
    machine.variables.clear();
    let found = machine.found(&CUDA);
    assert_eq!((&found.file, found.toolkit_stub), (&system_stub, true));

    machine.set("CUDA_PATH", machine.path("toolkit"));
    let driver = machine.put_library("root/usr/lib/x86_64-linux-gnu", &CUDA);
    let found = machine.found(&CUDA);
    assert_eq!((&found.file, found.toolkit_stub), (&driver, false));
    assert_eq!(found.source, Source::SystemPlace);

    // A driver below CUDA_PATH comes before the system's.
    let own = machine.put_library("toolkit/lib", &CUDA);
    let search = machine.find(&CUDA).unwrap();
    assert_eq!(search.found.unwrap().file, own);
    assert!(search.watch.is_empty(), "{:?}", search.watch);
}

#[test]
fn a_link_into_stubs_is_a_stub() {
    let mut machine = Machine::new(X86);
    machine.put(
        "toolkit/lib64/stubs/libcuda.so",
        machine.elf().named("libcuda.so.1"),
    );
    symlink(
        "stubs/libcuda.so",
        machine.path("toolkit/lib64/libcuda.so.1"),
    )
    .unwrap();
    machine.set("CUDA_PATH", machine.path("toolkit"));
    assert!(machine.found(&CUDA).toolkit_stub);

    // And one that the loader's cache lists is no driver either.
    machine.variables.clear();
    fs::rename(machine.path("toolkit"), machine.path("root/toolkit")).unwrap();
    let cache = loader_cache(&[("libcuda.so.1", "/toolkit/lib64/libcuda.so.1")]);
    machine.put("root/etc/ld.so.cache", cache);
    assert_eq!(machine.find(&CUDA).unwrap().found, None);
    let driver = machine.put_library("root/usr/lib64", &CUDA);
    assert_eq!(machine.found(&CUDA).file, driver);
}

#[test]
fn a_useless_file_in_the_system_is_named_and_passed_over() {
    // What containers leave behind that were saved while a driver was mounted.
    let machine = Machine::new(X86);
    let empty = machine.put("root/usr/lib/x86_64-linux-gnu/libcuda.so.1", "");
    let search = machine.find(&CUDA).unwrap();
    assert_eq!(search.found, None);
    let line = format!("  {} is empty\n", empty.display());
    assert!(search.tried.contains(&line), "{}", search.tried);
}

// ---- What a file is ----

#[test]
fn each_fault_of_a_file_has_its_sentence() {
    let mut machine = Machine::new(X86);
    machine.set("NCCL_HOME", machine.path("home"));
    let file = machine.path("home/lib/libnccl.so.2");
    let good = Elf::default();
    let sound = good.named("libnccl.so.2");
    let with = |change: fn(&mut Elf)| {
        let mut elf = good;
        change(&mut elf);
        elf.named("libnccl.so.2")
    };
    let cut = sound.len() - 1;
    let cases: Vec<(Vec<u8>, String)> = vec![
        (vec![], "is empty".into()),
        (
            b"version https://git-lfs.github.com/spec/v1\n".into(),
            "is a text file, not a library".into(),
        ),
        (
            b"/* GNU ld script */\nINPUT(libnccl.so.2.27)\n".into(),
            "is a text file, a linker script: name the folder of the library it leads to".into(),
        ),
        (b"\x00\x01\x02\xff".into(), "is not an ELF file".into()),
        (b"!<arch>\n\0\0\xff".into(), "is not an ELF file".into()),
        (
            sound[..40].into(),
            "is truncated: 40 bytes, of 64 or more".into(),
        ),
        (
            sound[..cut].into(),
            format!("is truncated: {cut} bytes, of {} or more", sound.len()),
        ),
        (
            with(|elf| elf.class = 1),
            "is a 32-bit library, which a program for x86_64 cannot use".into(),
        ),
        (
            with(|elf| elf.order = 2),
            "is a big-endian library, which a program for x86_64 cannot use".into(),
        ),
        (
            with(|elf| elf.machine = 183),
            "is built for aarch64, and the program for x86_64".into(),
        ),
        (
            with(|elf| elf.machine = 2),
            "is built for another machine, and the program for x86_64".into(),
        ),
        (
            with(|elf| elf.kind = 2),
            "is an ELF file, but not a shared library".into(),
        ),
        (
            good.named("libnccl.so.3"),
            "calls itself libnccl.so.3, and programs would ask for that".into(),
        ),
    ];
    for (bytes, sentence) in cases {
        machine.put("home/lib/libnccl.so.2", bytes);
        // A good neighbour is no way out: at run time the loader takes the bad one.
        machine.put("home/lib/libnccl.so", &sound);
        expect_fault(&machine, &file, &sentence);
    }
    fs::remove_file(&file).unwrap();
    symlink("libnccl.so.2.27.3", &file).unwrap();
    expect_fault(&machine, &file, "is a dangling link to libnccl.so.2.27.3");
    fs::remove_file(&file).unwrap();
    symlink("libnccl.so.2", &file).unwrap();
    expect_fault(&machine, &file, "cannot be read: ");
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    expect_fault(&machine, &file, "is a directory, not a library");
    fs::remove_dir(&file).unwrap();
    symlink("/dev/null", &file).unwrap();
    expect_fault(&machine, &file, "is not a regular file");
}

/// Both the check and the error of the whole search say so.
fn expect_fault(machine: &Machine, file: &Path, sentence: &str) {
    let why = machine.check(file).unwrap_err();
    assert!(why.starts_with(sentence), "{why:?} is not {sentence:?}");
    let error = machine.find(&NCCL).unwrap_err();
    let line = format!("\n  {} {sentence}", file.display());
    assert!(error.contains(&line), "{error}");
}

#[test]
fn a_sound_library_passes_and_no_damage_panics() {
    for target in [X86, ARM] {
        let machine = Machine::new(target);
        let bytes = machine.elf().named("libnccl.so.2");
        let file = machine.put("libnccl.so.2", &bytes);
        assert_eq!(machine.check(&file), Ok(true));
        let file = machine.put("libnccl.so.2", machine.elf().bytes(None));
        assert_eq!(machine.check(&file), Ok(false), "without a soname");
        for length in 0..bytes.len() {
            let file = machine.put("cut", &bytes[..length]);
            machine.check(&file).unwrap_err();
        }
        for at in 0..bytes.len() {
            let mut bytes = bytes.clone();
            bytes[at] = 0xff;
            let file = machine.put("damaged", bytes);
            let _ = machine.check(&file);
        }
    }
}

#[test]
fn segments_beyond_the_end_are_a_truncation_and_a_long_one_is_not_read_whole() {
    let machine = Machine::new(X86);
    let sound = Elf::default().named("libnccl.so.2");
    let with = |changes: &[(usize, u64)]| {
        let mut bytes = sound.clone();
        for (at, value) in changes {
            bytes[*at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        machine.put("libnccl.so.2", bytes)
    };
    const LOAD: usize = 64;
    const DYNAMIC: usize = 64 + 56;
    let (offset, size) = (8, 32);
    let length = sound.len() as u64;
    for changes in [
        [(LOAD + size, length + 1)],
        [(LOAD + size, u64::MAX)],
        [(LOAD + offset, length)],
        [(DYNAMIC + size, length)],
        [(DYNAMIC + size, u64::MAX)],
        [(DYNAMIC + offset, u64::MAX)],
        // The program headers.
        [(32, length - 56)],
        [(32, u64::MAX)],
    ] {
        let why = machine.check(&with(&changes)).unwrap_err();
        assert!(why.starts_with("is truncated: "), "{changes:?}: {why}");
    }
    // Addresses that overflow.
    let file = with(&[(LOAD + 16, u64::MAX), (64 + 2 * 56 + 24, 0)]);
    machine.check(&file).unwrap_err();

    // A file of a terabyte, without contents.
    let file = with(&[(DYNAMIC + size, 1 << 39), (LOAD + size, 1 << 39)]);
    let sparse = fs::File::options().write(true).open(&file).unwrap();
    sparse.set_len(1 << 40).unwrap();
    assert_eq!(machine.check(&file), Ok(true));
}

#[test]
fn what_rustc_links_is_understood() {
    let machine = Machine::new((support::host(), std::env::consts::ARCH));
    let file = machine.path("libnccl.so.2");
    support::library(&file, Some("libnccl.so.2"), &[("ncclF", "() {}")]);
    assert_eq!(machine.check(&file), Ok(true));
    support::library(&file, None, &[("ncclF", "() {}")]);
    assert_eq!(machine.check(&file), Ok(false));
    let length = fs::metadata(&file).unwrap().len();
    let cut = fs::File::options().write(true).open(&file).unwrap();
    cut.set_len(length / 2).unwrap();
    let why = machine.check(&file).unwrap_err();
    assert!(why.starts_with("is truncated: "), "{why}");
}

// ---- The header ----

#[test]
fn the_header_beside_the_library_is_found_and_read() {
    let machine = Machine::new(X86);
    let header = machine.put(
        "home/include/nccl.h",
        "/* NCCL_MAJOR 9 */\n#define NCCL_MAJOR 2\n#define NCCL_MINOR 27\n#define\tNCCL_PATCH  3\n\
         #define NCCL_SUFFIX \"\"\n#define NCCL_VERSION_CODE 22703\n",
    );
    for folder in ["lib", "lib64", "lib/x86_64-linux-gnu", "lib64/stubs", ""] {
        assert_eq!(
            header_of(&machine.path("home").join(folder)).as_ref(),
            Some(&header),
            "{folder}"
        );
    }
    assert_eq!(header_of(&machine.path("elsewhere/lib")), None);
    for folder in ["lib/x86_64-linux-gnu/stubs", "lib"] {
        let folder = machine.path("home").join(folder);
        assert_eq!(header_of(&folder).as_ref(), Some(&header));
    }
    // Another installation's does not count.
    for folder in [
        "home/nccl-2.20/lib",
        "home/nccl-2.20",
        "home/lib/nvidia/current",
    ] {
        assert_eq!(header_of(&machine.path(folder)), None, "{folder}");
    }
    // A link to the folder has other neighbours.
    fs::create_dir_all(machine.path("home/lib")).unwrap();
    symlink(machine.path("home/lib"), machine.path("link")).unwrap();
    let real = header.canonicalize().unwrap();
    assert_eq!(header_of(&machine.path("link")), Some(real));
    // Whatever this is, it is no header.
    machine.put("large/include/nccl.h", vec![b' '; (1 << 20) + 1]);
    assert_eq!(header_of(&machine.path("large/lib")), None);
    let text = fs::read_to_string(header).unwrap();
    assert_eq!(header_version(&text).as_deref(), Some("2.27.3"));
    assert_eq!(header_version("#define NCCL_MAJOR 2\n"), None);
    assert_eq!(header_version(&text.replace("27\n", "X\n")), None);
}

// ---- Import stubs ----

#[test]
fn the_scan_finds_each_declaration_and_nothing_else() {
    let source = r#"
        //! pub fn ncclInModuleDoc();
        bind! {
            library nccl;
            /// See also `pub fn ncclInDoc() -> i32;`.
            pub fn ncclOneLine(comm: NcclComm) -> NcclResult;
            // pub fn ncclInComment();
            #[doc(alias = "x")]
            pub fn ncclManyLines(
                /// A function; and an array.
                call: Option<unsafe extern "C" fn(*mut c_void, [u8; 4]) -> *mut c_void>,
                id: [u8; 128],
            ) -> NcclResult;
            pub fn ncclText(
                code: NcclResult,
            ) -> *const c_char;
            pub fn ncclNothing();
            pub fn ncclSplit(code: NcclResult)
                -> NcclResult;
            pub fn cuOther() -> CuResult;
        }
        pub fn ncclWrapper(x: i32) -> i32 { let y = x; y }
        pub const fn ncclConst() -> i32 { 1 }
        pub fn ncclLast() -> NcclResult;
    "#;
    let code = |name| (name, "i32");
    assert_eq!(
        functions(&stub_source(&NCCL, source)),
        [
            code("ncclOneLine"),
            code("ncclManyLines"),
            ("ncclText", "*const u8"),
            ("ncclNothing", "()"),
            code("ncclSplit"),
            code("ncclLast"),
        ]
    );
    assert_eq!(functions(&stub_source(&CUDA, source)), [code("cuOther")]);
    assert_eq!(stub_source(&CUDA, ""), "");
    assert_eq!(stub_source(&CUDA, "pub fn ncclOther();"), "");
}

/// The functions of a stub's source, each with the type of its answer.
fn functions(stub: &str) -> Vec<(&str, &str)> {
    let pieces = stub.split("extern \"C\" fn ").skip(1);
    pieces
        .map(|piece| {
            let (head, rest) = piece.split_once(") -> ").unwrap();
            let name = head.split_once('(').unwrap().0;
            (name, rest.split_once(" {").unwrap().0)
        })
        .collect()
}

#[test]
fn the_scan_of_the_crates_own_declarations_is_complete() {
    for (library, names) in [
        (&NCCL, metrale_gpu_sys::nccl::FUNCTIONS),
        (&CUDA, metrale_gpu_sys::cuda::FUNCTIONS),
    ] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
        let source = fs::read_to_string(folder.join(library.declarations)).unwrap();
        let stub = stub_source(library, &source);
        let found: Vec<&str> = functions(&stub).iter().map(|(name, _)| *name).collect();
        assert_eq!(found, names);
        for name in names {
            assert_eq!(stub.matches(&format!("fn {name}(")).count(), 1, "{name}");
        }
    }
}

#[test]
fn a_stub_function_fails_in_the_way_that_its_type_allows() {
    let stub = stub_source(
        &NCCL,
        "pub fn ncclSend(count: usize) -> NcclResult;
         pub fn ncclGetErrorString(code: NcclResult) -> *const c_char;
         pub fn ncclGetLastError(comm: NcclComm) -> *const c_char;
         pub fn ncclName() -> *const c_char;
         pub fn ncclReset();",
    );
    for line in [
        "fn ncclSend() -> i32 { 2 }",
        "fn ncclName() -> *const u8 { core::ptr::null() }",
        "fn ncclReset() -> () { () }",
        "fn ncclGetErrorString() -> *const u8 { c\"this is an import stub: no libnccl.so.2",
        "or set NCCL_HOME and build again\".as_ptr().cast() }",
        "fn ncclGetLastError() -> *const u8 { c\"\".as_ptr().cast() }",
    ] {
        assert!(stub.contains(line), "{line} in {stub}");
    }
    let stub = stub_source(
        &CUDA,
        "pub fn cuInit(flags: u32) -> CuResult;
         pub fn cuGetErrorString(error: CuResult, str: *mut *const c_char) -> CuResult;",
    );
    for line in [
        "fn cuInit() -> i32 { 34 }",
        "fn cuGetErrorString(_: i32, text: Option<&mut *const u8>) -> i32 { match text",
        "*text = c\"this is an import stub: no libcuda.so.1",
        "\".as_ptr().cast(); 0 } None => 34 } }",
    ] {
        assert!(stub.contains(line), "{line} in {stub}");
    }
}

#[test]
fn only_the_choice_of_a_linker_is_taken_from_the_flags() {
    let chosen = |linker: &str, flags: &[&str]| {
        let mut rustc = Command::new("rustc");
        choose_linker(&mut rustc, linker, &flags.join("\x1f"));
        let arguments = rustc.get_args().map(|word| word.to_str().unwrap());
        arguments.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(chosen("", &[]), "");
    let flags = ["-Copt-level=3", "-C", "linker=clang", "-Ctarget-cpu=native"];
    assert_eq!(chosen("gcc", &flags), "-Clinker=gcc -Clinker=clang");
    let flags = ["-Clinker=rust-lld", "-C", "linker-flavor=ld.lld", "-Clto"];
    assert_eq!(
        chosen("", &flags),
        "-Clinker=rust-lld -Clinker-flavor=ld.lld"
    );
}

// ---- The script as a whole ----

/// The script, compiled, and what cargo would tell it.
struct Script {
    folder: TempDir,
}

impl Script {
    fn compile() -> Script {
        let folder = TempDir::new().unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("build.rs");
        let mut rustc = support::rustc();
        rustc.args(["--edition=2024", "--crate-name=script", "-o"]);
        support::succeed(rustc.arg(folder.path().join("script")).arg(source));
        fs::create_dir(folder.path().join("out")).unwrap();
        Script { folder }
    }

    fn run(&self, triple: &str, os: &str, environment: &str, cwd: &Path) -> (bool, String) {
        self.run_with(triple, os, environment, cwd, &[])
    }

    fn run_with(
        &self,
        triple: &str,
        os: &str,
        environment: &str,
        cwd: &Path,
        variables: &[(&str, &OsStr)],
    ) -> (bool, String) {
        let mut script = support::clean(self.folder.path().join("script"));
        script
            .current_dir(cwd)
            .env("OUT_DIR", self.folder.path().join("out"))
            .env("TARGET", triple)
            .env("CARGO_CFG_TARGET_ARCH", triple.split('-').next().unwrap())
            .env("CARGO_CFG_TARGET_OS", os)
            .env("CARGO_CFG_TARGET_ENV", environment)
            .envs(variables.iter().copied());
        let output = script.output().unwrap();
        assert_eq!(
            output.stderr,
            b"",
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        (
            output.status.success(),
            String::from_utf8(output.stdout).unwrap(),
        )
    }

    fn report(&self) -> String {
        fs::read_to_string(self.folder.path().join("out/build_report.txt")).unwrap()
    }
}

#[test]
fn the_script_as_cargo_runs_it() {
    let script = Script::compile();
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));

    // NCCL has no library for these.
    for (triple, os, environment) in [
        ("aarch64-apple-darwin", "macos", ""),
        ("x86_64-pc-windows-msvc", "windows", "msvc"),
        ("x86_64-unknown-linux-musl", "linux", "musl"),
        ("aarch64-linux-android", "android", ""),
    ] {
        let (success, output) = script.run(triple, os, environment, package);
        assert!(success, "{output}");
        let sentence = format!("NCCL needs Linux with glibc: nothing is linked for {triple}");
        assert!(output.contains(&format!("cargo::warning={sentence}\n")));
        assert!(!output.contains("rustc-link"), "{output}");
        // The README's build.rs asks for it.
        assert!(output.contains("cargo::metadata=RPATH=$ORIGIN\n"));
        assert_eq!(script.report(), sentence);
    }

    // A target whose standard library rustc does not have: it can be checked and documented.
    let (success, output) = script.run("mars64-unknown-linux-gnu", "linux", "gnu", package);
    assert!(success, "{output}");
    assert!(output.contains("cargo::warning=no import stub for libnccl.so.2: error"));
    assert!(!output.contains("rustc-link-lib"), "{output}");
    assert!(
        script
            .report()
            .contains("no import stub could be made: error")
    );

    // This machine: what cargo is told to watch exists, or it would never rest.
    let (success, output) = script.run(support::host(), "linux", "gnu", package);
    assert!(success, "{output}");
    let mut watched = 0;
    for line in output.lines() {
        if let Some(path) = line.strip_prefix("cargo::rerun-if-changed=") {
            assert!(package.join(path).exists(), "{path}");
            assert!(!["/", "/usr", "/usr/lib", "/lib"].contains(&path), "{path}");
            watched += 1;
        }
    }
    assert!(watched >= 1, "{output}");
    for name in variable_names(&NCCL, support::host())
        .iter()
        .chain(&variable_names(&CUDA, support::host()))
    {
        let line = format!("cargo::rerun-if-env-changed={name}\n");
        assert!(output.contains(&line), "{name}");
    }

    // What is named by a variable, with the header beside it.
    let machine = Machine::new((support::host(), std::env::consts::ARCH));
    let library = machine.put_library("home,a/lib", &NCCL);
    let text = "#define NCCL_MAJOR 2\n#define NCCL_MINOR 27\n#define NCCL_PATCH 3\n";
    machine.put("home,a/include/nccl.h", text);
    let lib = library.parent().unwrap();
    for home in [lib.parent().unwrap(), lib] {
        let variables = [
            ("NCCL_HOME", home.as_os_str()),
            (
                "CARGO_CFG_TARGET_FEATURE",
                OsStr::new("fxsr,crt-static,sse"),
            ),
        ];
        let (success, output) =
            script.run_with(support::host(), "linux", "gnu", package, &variables);
        assert!(success, "{output}");
        assert!(
            output.contains("cargo::metadata=VERSION=2.27.3\n"),
            "{output}"
        );
        assert!(output.contains("cargo::warning=a program with glibc linked in (crt-static)"));
        assert!(!output.contains("OUT_DIR is"), "{output}");
        let value = |key: &str| {
            let line = output.lines().find_map(|line| line.strip_prefix(key));
            line.unwrap_or_else(|| panic!("{key} in {output}"))
                .to_owned()
        };
        let include = value("cargo::metadata=INCLUDE_DIR=");
        let header = format!("cargo::rerun-if-changed={include}/nccl.h\n");
        assert!(output.contains(&header), "{output}");
        assert!(!include.contains(','), "{include}");
        assert!(!value("cargo::metadata=RPATH=").contains(','), "{output}");
    }

    // A folder of the target that no run-time path can name.
    for name in ["a,b", "$ORIGIN", "a\nb"] {
        let out = machine.path(name);
        fs::create_dir(&out).unwrap();
        let variables = [("OUT_DIR", out.as_os_str())];
        let (success, output) =
            script.run_with(support::host(), "linux", "gnu", package, &variables);
        assert!(success, "{output}");
        let sentence = format!("cargo::warning=OUT_DIR is {out:?}, which no run-time path can");
        assert!(output.contains(&sentence), "{output}");
        assert!(!output.contains("crt-static"), "{output}");
    }

    // Declarations without a function are a defect of the package, unless no stub is needed.
    let empty = TempDir::new().unwrap();
    for library in [&NCCL, &CUDA] {
        let file = empty.path().join(library.declarations);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, "//! pub fn ncclNot();\n").unwrap();
    }
    let (success, output) = script.run("mars64-unknown-linux-gnu", "linux", "gnu", empty.path());
    assert!(!success);
    assert!(
        output.contains("cargo::error=src/nccl/ffi.rs declares no function"),
        "{output}"
    );
}
