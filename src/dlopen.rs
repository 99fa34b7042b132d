//! The libraries opened at run time: where they are looked for, and what answers until one is found.
//!
//! Each declared function is a jump through a pointer of its own ([`function!`]). The pointer starts at
//! a stand-in that finds the real function by name, leaves its address in the pointer and calls it.
//!
//! There is no lock: threads that come at the same time search at the same time, the dynamic loader gives
//! them the same library, and the first result is kept. So nothing is half done where a process forks,
//! or calls before `main`. The C library's own calls are used and no crate around them, because
//! [`loaded`](crate::loaded) needs more of them than such a crate has.

use std::cell::Cell;
use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::bind;
use crate::files;
use crate::loaded::{self, Function, RTLD_LAZY, RTLD_NOLOAD, RTLD_NOW, dlclose, dlopen, dlsym};

unsafe extern "C" {
    fn dlerror() -> *const c_char;
    /// As `getenv`, but nothing in a program that runs with more rights than its caller.
    fn secure_getenv(name: *const c_char) -> *const c_char;
}

/// Defines a C function that jumps to the one of `LIBRARY`, which stands in module `$library`.
///
/// The symbol is hidden, so that the program does not become a second NCCL for the libraries that it
/// loads, and links for code that declares the function for itself. It is written in assembly because
/// only there a symbol can be made hidden, and because a jump has no need to know the arguments.
macro_rules! function {
    ($library:ident, $name:ident($($parameter:ident: $kind:ty),*) $(-> $answer:ty)?, $doc:expr) => {
        // A module is where assembly may stand beside items of the same names. Some need no types.
        #[allow(non_snake_case, unused_imports, deprecated)]
        mod $name {
            use super::*;
            use $crate::dlopen::{Absent, Entry};

            static TARGET: std::sync::atomic::AtomicPtr<std::ffi::c_void> =
                std::sync::atomic::AtomicPtr::new(first as *mut std::ffi::c_void);
            static ENTRY: Entry = Entry {
                name: stringify!($name),
                since: $crate::dlopen::since($doc),
            };

            unsafe extern "C" fn first($($parameter: $kind),*) $(-> $answer)? {
                match $crate::$library::LIBRARY.find(&ENTRY, &TARGET) {
                    // SAFETY: the library's function of this name has this type, and the caller vouches
                    // for the arguments.
                    Ok(found) => unsafe {
                        std::mem::transmute::<
                            std::ptr::NonNull<std::ffi::c_void>,
                            unsafe extern "C" fn($($kind),*) $(-> $answer)?,
                        >(found)($($parameter),*)
                    },
                    Err(why) => Absent::absent(why),
                }
            }

            std::arch::global_asm!(
                ".pushsection .text.{name}, \"ax\"",
                ".globl {name}",
                ".hidden {name}",
                ".type {name}, @function",
                ".p2align 4",
                "{name}:",
                ".cfi_startproc",
                $crate::dlopen::jump!(),
                ".cfi_endproc",
                ".size {name}, . - {name}",
                ".popsection",
                name = sym $name,
                target = sym TARGET,
            );
        }
    };
}
pub(crate) use function;

/// The jump through `target`. Another thread may have written the pointer: what it leads to is read after it.
#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    () => {
        "jmp qword ptr [rip + {target}]"
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    () => {
        "adrp x16, {target}\nadd x16, x16, :lo12:{target}\nldar x16, [x16]\nbr x16"
    };
}
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("the feature dlopen is made for x86_64 and aarch64, the targets that CUDA supports");
pub(crate) use jump;

/// What is known of a declared function before its library is found.
pub(crate) struct Entry {
    pub(crate) name: &'static str,
    /// The release that brought it, 0 where the doc says none.
    pub(crate) since: [i32; 3],
}

/// Why a function cannot be called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    NotLoaded,
    NotInThisVersion,
}

/// What a function answers that cannot be called.
pub(crate) trait Absent {
    fn absent(why: Why) -> Self;
}

impl Absent for () {
    fn absent(_: Why) {}
}

impl<T> Absent for *const T {
    fn absent(_: Why) -> Self {
        std::ptr::null()
    }
}

/// One of the two libraries: how to find it, and what became of that.
pub(crate) struct Library {
    name: &'static str,
    soname: &'static CStr,
    /// Names an installation, or the folder of the file.
    variable: &'static CStr,
    /// Whether the variable is wrong where the library is not below it.
    strict: bool,
    /// A file to try last.
    place: Option<&'static CStr>,
    functions: &'static [&'static str],
    /// Null before the first search. What it points to lives as long as the process.
    opened: AtomicPtr<Opened>,
}

/// What a search came to.
struct Opened {
    /// The loader's; null if nothing was found.
    handle: *mut c_void,
    /// What was tried and failed, with the reasons.
    tried: String,
}

thread_local! {
    /// The function that this thread missed last, for the error's text.
    static MISSED: Cell<Option<&'static Entry>> = const { Cell::new(None) };
}

impl Library {
    pub(crate) const fn new(
        name: &'static str,
        soname: &'static CStr,
        variable: &'static CStr,
        strict: bool,
        place: Option<&'static CStr>,
        functions: &'static [&'static str],
    ) -> Self {
        Self {
            name,
            soname,
            variable,
            strict,
            place,
            functions,
            opened: AtomicPtr::new(null_mut()),
        }
    }

    /// The function's address, which `target` keeps for all later calls.
    #[cold]
    pub(crate) fn find(
        &self,
        entry: &'static Entry,
        target: &AtomicPtr<c_void>,
    ) -> Result<NonNull<c_void>, Why> {
        let handle = self.opened().handle;
        match NonNull::new(symbol(handle, entry.name)) {
            Some(found) => {
                target.store(found.as_ptr(), Ordering::Release);
                Ok(found)
            }
            None if handle.is_null() => Err(Why::NotLoaded),
            None => {
                MISSED.set(Some(entry));
                Err(Why::NotInThisVersion)
            }
        }
    }

    /// The address of one of the library's functions; null without it.
    pub(crate) fn address(&self, name: &str) -> *const c_void {
        symbol(self.opened().handle, name)
    }

    /// The first declared function that the library has.
    pub(crate) fn any_function(&self) -> Option<Function> {
        let functions = self.functions.iter();
        functions
            .map(|name| Function {
                address: self.address(name),
                name,
            })
            .find(|function| !function.address.is_null())
    }

    /// What a failure to call says: why there is no library, or what it lacks. `release` is the loaded
    /// one's.
    pub(crate) fn explain(&self, why: Why, release: impl FnOnce() -> [i32; 3]) -> Option<String> {
        let (soname, opened) = (self.soname.to_string_lossy(), self.opened());
        if why == Why::NotLoaded {
            let tried = &opened.tried;
            let here = opened.handle.is_null();
            return here.then(|| format!("{soname} could not be opened: {tried}"));
        }
        let entry = MISSED.get();
        let Entry { name, since } = entry.filter(|entry| self.functions.contains(&entry.name))?;
        let file = self.file();
        let (file, kind, release) = (file.display(), self.name, release());
        let [needed, this] = [*since, release].map(|release| match release {
            [major, minor, 0] => format!("{major}.{minor}"),
            [major, minor, patch] => format!("{major}.{minor}.{patch}"),
        });
        Some(if *since > release {
            format!("{name} needs {kind} {needed}, and this is {this} from {file}")
        } else {
            format!("there is no {name} in {file}, which is {kind} {this}")
        })
    }

    /// The file that answers.
    fn file(&self) -> PathBuf {
        let file = self
            .any_function()
            .and_then(|function| loaded::file_of(function.address));
        file.unwrap_or_default()
    }

    /// Opens `file` for all calls to come, or says why it cannot be.
    pub(crate) fn load(&self, file: &Path) -> Result<(), String> {
        loop {
            let current = self.opened.load(Ordering::Acquire);
            // SAFETY: what was published is never freed.
            let bound = unsafe { current.as_ref() }.map_or(null_mut(), |opened| opened.handle);
            if !bound.is_null() {
                // Another file is not even mapped.
                return match self.open(file, RTLD_LAZY | RTLD_NOLOAD) {
                    Ok(handle) if handle == bound => Ok(()),
                    _ => Err(format!(
                        "{} answers the calls already, and cannot be exchanged for {}: load comes before \
                         the first call",
                        self.file().display(),
                        file.display(),
                    )),
                };
            }
            let handle = self.open(file, RTLD_NOW)?;
            let tried = String::new();
            if self.publish(current, Opened { handle, tried }).is_ok() {
                return Ok(());
            }
            // SAFETY: opened just above, and nobody has seen it.
            unsafe { dlclose(handle) };
        }
    }

    /// The result of the first search, which this is if there was none.
    fn opened(&self) -> &Opened {
        let opened = self.opened.load(Ordering::Acquire);
        // SAFETY: what was published is never freed.
        if let Some(opened) = unsafe { opened.as_ref() } {
            return opened;
        }
        let opened = match self.publish(null_mut(), self.search()) {
            Ok(own) => own,
            Err(first) => first,
        };
        // SAFETY: as above; what publish gives is never null here, since nothing becomes null again.
        unsafe { &*opened }
    }

    /// Puts a result in the place of `current`, or gives the one that another thread has put there.
    fn publish(&self, current: *mut Opened, opened: Opened) -> Result<*mut Opened, *mut Opened> {
        let new = Box::into_raw(Box::new(opened));
        let exchanged =
            self.opened
                .compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire);
        if exchanged.is_err() {
            // SAFETY: it came from a box just above, and nobody has seen it.
            drop(unsafe { Box::from_raw(new) });
        }
        exchanged.map(|_| new)
    }

    /// Looks below the variable, then among what is mapped, then where the loader looks.
    fn search(&self) -> Opened {
        let mut tried = Vec::new();
        let handle = self.search_into(&mut tried).unwrap_or(null_mut());
        Opened {
            handle,
            tried: tried.join("; "),
        }
    }

    fn search_into(&self, tried: &mut Vec<String>) -> Option<*mut c_void> {
        let mut attempt =
            |opened: Result<*mut c_void, String>| opened.map_err(|why| tried.push(why)).ok();
        let variable = self.variable.to_string_lossy();
        if let Some(home) = setting(self.variable) {
            let home = Path::new(OsStr::from_bytes(home.to_bytes()));
            let said = format!("{variable} is {}", home.display());
            if home.is_relative() {
                attempt(Err(format!("{said}, a relative path: give the full one")));
                return None;
            }
            if !home.is_dir() {
                let why = match home.metadata() {
                    Ok(_) => "a file: name the folder that holds it".to_owned(),
                    Err(error) => format!("which {}", files::reason(&error)),
                };
                attempt(Err(format!("{said}, {why}")));
                return None;
            }
            let mut empty = Vec::new();
            for folder in files::installation_folders(home, std::env::consts::ARCH) {
                // Whoever names the folder of an NCCL means it, whatever its name; else stubs only serve
                // linkers.
                if files::is_stubs(&folder) && !(self.strict && folder == home) {
                    continue;
                }
                let file = folder.join(OsStr::from_bytes(self.soname.to_bytes()));
                if file.symlink_metadata().is_err() {
                    empty.push(folder.display().to_string());
                } else if let Some(handle) = attempt(self.open(&file, RTLD_NOW)) {
                    return Some(handle);
                }
            }
            if !empty.is_empty() {
                let (soname, empty) = (self.soname.to_string_lossy(), empty.join(", "));
                attempt(Err(format!("{said}, and there is no {soname} in {empty}")));
            }
            if self.strict {
                return None;
            }
        }
        let mapped = self.open_name(self.soname, RTLD_LAZY | RTLD_NOLOAD);
        mapped
            .ok()
            .or_else(|| attempt(self.open_name(self.soname, RTLD_NOW)))
            .or_else(|| attempt(self.open_name(self.place?, RTLD_NOW)))
    }

    /// Opens a file that is a library of this kind.
    fn open(&self, file: &Path, flags: c_int) -> Result<*mut c_void, String> {
        // The loader maps a file that was cut short, and the process dies when it reads on.
        if file.as_os_str().as_bytes().contains(&b'/') {
            files::soname(file, std::env::consts::ARCH)
                .map_err(|why| format!("{} {why}", file.display()))?;
        }
        let name = CString::new(file.as_os_str().as_bytes())
            .map_err(|_| format!("{}: a path cannot hold a zero byte", file.display()))?;
        self.open_name(&name, flags)
    }

    fn open_name(&self, name: &CStr, flags: c_int) -> Result<*mut c_void, String> {
        let shown = name.to_string_lossy();
        // SAFETY: the name ends with a zero byte; that initializers run is what opening a library means.
        let handle = unsafe { dlopen(name.as_ptr(), flags) };
        if handle.is_null() {
            // SAFETY: null or a string that is valid until this thread's next call of the loader.
            let why = unsafe { bind::text(dlerror()) }.unwrap_or_default();
            return Err(if why.contains(&*shown) {
                why
            } else {
                format!("{shown}: {why}")
            });
        }
        if self
            .functions
            .iter()
            .all(|name| symbol(handle, name).is_null())
        {
            // SAFETY: opened just above, and nothing of it is in use here.
            unsafe { dlclose(handle) };
            return Err(format!("{shown} has none of {}'s functions", self.name));
        }
        Ok(handle)
    }
}

/// What a library or one of its dependencies has under this name; null without a handle.
fn symbol(handle: *mut c_void, name: &str) -> *mut c_void {
    let (false, Ok(name)) = (handle.is_null(), CString::new(name)) else {
        return null_mut();
    };
    // SAFETY: the handle is open, and the name ends with a zero byte.
    unsafe { dlsym(handle, name.as_ptr()) }
}

/// A variable that is set and not empty.
fn setting(name: &CStr) -> Option<CString> {
    // SAFETY: the name ends with a zero byte; the value is null or ends with one, and is copied before
    // anything else runs.
    let value = unsafe {
        let value = secure_getenv(name.as_ptr());
        (!value.is_null()).then(|| CStr::from_ptr(value).to_owned())
    };
    value.filter(|value| !value.is_empty())
}

/// The release in a doc's last `Since NCCL 2.27.`, as numbers.
pub(crate) const fn since(doc: &str) -> [i32; 3] {
    let doc = doc.as_bytes();
    let mark = b"Since ";
    let mut release = [0; 3];
    let mut at = 0;
    while at + mark.len() < doc.len() {
        let mut same = 0;
        while same < mark.len() && doc[at + same] == mark[same] {
            same += 1;
        }
        at += 1;
        if same < mark.len() {
            continue;
        }
        // The library's name, and the space behind it.
        at += mark.len() - 1 + "NCCL ".len();
        release = [0; 3];
        let mut part = 0;
        while at < doc.len() && part < 3 {
            match doc[at] {
                digit @ b'0'..=b'9' => release[part] = release[part] * 10 + (digit - b'0') as i32,
                b'.' => part += 1,
                _ => break,
            }
            at += 1;
        }
    }
    release
}
