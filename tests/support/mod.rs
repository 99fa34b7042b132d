//! What tests share: commands that nothing leaks into, made-up libraries that need no C compiler, and
//! what a program's file says.

#![allow(dead_code)]

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use object::Endianness;
use object::elf::{DynamicTag, FileHeader64};
use object::read::elf::{Dyn, FileHeader};

/// The target that this test runs on.
pub fn host() -> &'static str {
    match env::consts::ARCH {
        "x86_64" => "x86_64-unknown-linux-gnu",
        "aarch64" => "aarch64-unknown-linux-gnu",
        other => panic!("CUDA has no libraries for {other}"),
    }
}

/// A command without the variables of the outer `cargo test`, and of the user.
pub fn clean(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.env_clear();
    for name in ["PATH", "HOME", "TMPDIR", "CARGO_HOME", "RUSTUP_HOME"] {
        if let Some(value) = env::var_os(name) {
            command.env(name, value);
        }
    }
    command.env("RUSTC", rustc_path());
    command
}

/// The rustc that belongs to this cargo.
fn rustc_path() -> PathBuf {
    let beside = Path::new(env!("CARGO")).with_file_name("rustc");
    if beside.is_file() {
        beside
    } else {
        env::var_os("RUSTC").unwrap_or("rustc".into()).into()
    }
}

pub fn rustc() -> Command {
    clean(rustc_path())
}

pub fn cargo() -> Command {
    let mut cargo = clean(env!("CARGO"));
    cargo.env("CARGO_TERM_COLOR", "never");
    cargo
}

/// What a command did: its exit code, and all that it said.
pub struct Outcome {
    pub code: Option<i32>,
    pub text: String,
}

impl Outcome {
    #[track_caller]
    pub fn expect(self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "{}", self.text);
        self.text
    }
}

pub fn run(command: &mut Command) -> Outcome {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    Outcome {
        code: output.status.code(),
        text: String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr),
    }
}

/// Runs a command that must succeed, and gives what it said.
#[track_caller]
pub fn succeed(command: &mut Command) -> String {
    run(command).expect(0)
}

/// Makes a shared library of functions, each a name and the rest of its definition in Rust.
pub fn library(file: &Path, soname: Option<&str>, functions: &[(&str, &str)]) {
    let mut source = String::from(
        "#![no_std]\n#![allow(unused, non_snake_case)]\nuse core::ffi::*;\n\
         #[panic_handler] fn panic(_: &core::panic::PanicInfo) -> ! { loop {} }\n",
    );
    for (name, rest) in functions {
        source += &format!("#[unsafe(no_mangle)] pub unsafe extern \"C\" fn {name}{rest}\n");
    }
    // Rustc takes only UTF-8 paths, so the library is made elsewhere and put in place.
    let folder = tempfile::tempdir().unwrap();
    let [source_file, made] = ["fake.rs", "fake.so"].map(|name| folder.path().join(name));
    fs::write(&source_file, source).unwrap();
    let mut rustc = rustc();
    rustc.args(["--edition=2024", "--crate-type=cdylib", "--crate-name=fake"]);
    rustc.args(["-Cpanic=abort", "-Copt-level=1", "-Cstrip=symbols"]);
    rustc.arg("-Clink-arg=-nostdlib");
    if let Some(soname) = soname {
        rustc.arg(format!("-Clink-arg=-Wl,-soname,{soname}"));
    }
    succeed(rustc.arg("-o").arg(&made).arg(&source_file));
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::copy(made, file).unwrap();
}

/// The values of a tag in a program's dynamic section.
pub fn dynamic(file: &Path, tags: &[DynamicTag]) -> Vec<String> {
    let data = fs::read(file).unwrap();
    let data = data.as_slice();
    let header = FileHeader64::<Endianness>::parse(data).unwrap();
    let endian = header.endian().unwrap();
    let sections = header.sections(endian, data).unwrap();
    let (entries, link) = sections.dynamic(endian, data).unwrap().unwrap();
    let strings = sections.strings(endian, data, link).unwrap();
    let mut values = Vec::new();
    for entry in entries {
        if tags.contains(&(entry.d_tag(endian))) {
            let value = strings.get(entry.d_val(endian) as u32).unwrap();
            values.push(String::from_utf8(value.to_vec()).unwrap());
        }
    }
    values
}
