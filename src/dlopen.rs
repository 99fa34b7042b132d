//! The libraries opened at run time: where they are looked for, and what answers until one is found.
//!
//! Each declared function is a jump through a pointer of its own ([`function!`]). The pointer starts at
//! a stand-in that finds the real function by name, leaves its address in the pointer and calls it.
//!
//! There is no lock here: threads that come at the same time search at the same time, the dynamic loader gives
//! them the same library, and the first result is kept. The C library's own calls are used and no crate
//! around them, because [`loaded`](crate::loaded) needs more of them than such a crate has.

use std::env;
use std::ffi::{CStr, CString, OsStr, OsString, c_char, c_int, c_ulong, c_void};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::bind;
use crate::files;
use crate::loaded::{self, Function, RTLD_LAZY, RTLD_NOLOAD, RTLD_NOW, dlclose, dlopen, dlsym};

unsafe extern "C" {
    fn dlerror() -> *const c_char;
    fn getauxval(kind: c_ulong) -> c_ulong;
}

/// Not 0 in a program that runs with more rights than its caller.
const AT_SECURE: c_ulong = 23;

/// Defines a C function that jumps to the one of `LIBRARY`, which stands in module `$library`.
///
/// The symbol is hidden, so that the program does not become a second NCCL for the libraries that it
/// loads, and links for code that declares the function for itself. It is written in assembly because
/// only there a symbol can be made hidden, and because a jump has no need to know the arguments.
macro_rules! function {
    ($library:ident, $name:ident($($parameter:ident: $kind:ty),*) $(-> $answer:ty)?) => {
        // A module is where assembly may stand beside items of the same names. Some need no types.
        #[allow(non_snake_case, unused_imports, deprecated)]
        mod $name {
            use super::*;
            use $crate::dlopen::Absent;

            static TARGET: std::sync::atomic::AtomicPtr<std::ffi::c_void> =
                std::sync::atomic::AtomicPtr::new(first as *mut std::ffi::c_void);

            unsafe extern "C" fn first($($parameter: $kind),*) $(-> $answer)? {
                match $crate::$library::LIBRARY.find(stringify!($name), &TARGET) {
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
    pub(crate) name: &'static str,
    pub(crate) soname: &'static CStr,
    /// Names an installation, or the folder of the file.
    pub(crate) variable: &'static str,
    /// Whether the variable is wrong where the library is not below it.
    pub(crate) strict: bool,
    /// A file to try last.
    pub(crate) place: Option<&'static str>,
    pub(crate) functions: &'static [&'static str],
    /// The release that brought each function, 0 where the doc says none.
    pub(crate) since: &'static [[i32; 3]],
    /// Null before the first search. What it points to lives as long as the process.
    pub(crate) opened: AtomicPtr<Opened>,
}

/// What a search came to.
pub(crate) struct Opened {
    /// The loader's; null if nothing was found.
    handle: *mut c_void,
    /// What was tried and failed, with the reasons.
    tried: String,
    /// The result that this one took the place of: a reader may still have it.
    _before: *mut Opened,
}

impl Library {
    /// The function's address, which `target` keeps for all later calls.
    #[cold]
    pub(crate) fn find(
        &self,
        name: &str,
        target: &AtomicPtr<c_void>,
    ) -> Result<NonNull<c_void>, Why> {
        let handle = self.opened().handle;
        match NonNull::new(symbol(handle, name)) {
            Some(found) => {
                target.store(found.as_ptr(), Ordering::Release);
                Ok(found)
            }
            None if handle.is_null() => Err(Why::NotLoaded),
            None => Err(Why::NotInThisVersion),
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

    /// What a failure to call says: why there is no library, or what it lacks. `context` names the call, by
    /// habit, and `release` is the library's, 0 if it does not tell.
    pub(crate) fn explain(&self, why: Why, context: &str, release: [i32; 3]) -> String {
        let (opened, soname) = (self.opened(), self.soname.to_string_lossy());
        if opened.handle.is_null() {
            return format!("{soname} could not be opened: {}", opened.tried);
        }
        let (file, kind) = (self.file(), self.name);
        let file = file.display();
        if why == Why::NotLoaded {
            return format!("{soname} could not be opened then, and {file} is now");
        }
        let known = release > [0; 3];
        let this = dotted(release);
        let mut words = context.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
        let lacking = words.find_map(|word| {
            let at = self.functions.iter().position(|name| *name == word)?;
            self.address(word)
                .is_null()
                .then_some((word, self.since[at]))
        });
        match lacking {
            Some((name, since)) if known && since > release => {
                let since = dotted(since);
                format!("{name} needs {kind} {since}, and this is {this} from {file}")
            }
            Some((name, _)) if known => {
                format!("there is no {name} in {file}, which is {kind} {this}")
            }
            Some((name, _)) => format!("there is no {name} in {file}"),
            None if known => format!("the function is not in {file}, which is {kind} {this}"),
            None => format!("the function is not in {file}"),
        }
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
            let flags = match bound.is_null() {
                true => RTLD_NOW,
                // Another file is not even mapped.
                false => RTLD_LAZY | RTLD_NOLOAD,
            };
            let handle = self.open(file, flags);
            if bound.is_null() {
                let opened = Opened {
                    handle: handle.clone()?,
                    tried: String::new(),
                    _before: current,
                };
                if self.publish(current, opened).is_ok() {
                    return Ok(());
                }
            }
            let same = handle == Ok(bound);
            if let Ok(handle) = handle {
                // SAFETY: opened just above, and nothing was taken from it.
                unsafe { dlclose(handle) };
            }
            if same {
                return Ok(());
            }
            if !bound.is_null() {
                return Err(format!(
                    "{} answers the calls already, and cannot be exchanged for {}: load comes before the \
                     first call",
                    self.file().display(),
                    file.display(),
                ));
            }
        }
    }

    /// The result of the first search, which this is if there was none.
    fn opened(&self) -> &Opened {
        let opened = self.opened.load(Ordering::Acquire);
        // SAFETY: what was published is never freed.
        if let Some(opened) = unsafe { opened.as_ref() } {
            return opened;
        }
        let search = self.search();
        let handle = search.handle;
        let opened = match self.publish(null_mut(), search) {
            Ok(own) => own,
            Err(first) => {
                if !handle.is_null() {
                    // SAFETY: opened just above, and nothing was taken from it.
                    unsafe { dlclose(handle) };
                }
                first
            }
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
            // One line, whatever a path may hold.
            tried: tried.join("; ").replace('\n', "\\n"),
            _before: null_mut(),
        }
    }

    fn search_into(&self, tried: &mut Vec<String>) -> Option<*mut c_void> {
        if let Some(home) = setting(self.variable) {
            let found = self.search_below(Path::new(&home), tried);
            if found.is_some() || self.strict {
                return found;
            }
        }
        let mut attempt =
            |opened: Result<*mut c_void, String>| opened.map_err(|why| tried.push(why)).ok();
        let soname = Path::new(OsStr::from_bytes(self.soname.to_bytes()));
        let mapped = self.open_name(self.soname, RTLD_LAZY | RTLD_NOLOAD);
        mapped
            .ok()
            .or_else(|| attempt(self.open(soname, RTLD_NOW)))
            .or_else(|| attempt(self.open(Path::new(self.place?), RTLD_NOW)))
    }

    fn search_below(&self, home: &Path, tried: &mut Vec<String>) -> Option<*mut c_void> {
        let said = format!("{} is {}", self.variable, home.display());
        let why = match home.metadata() {
            _ if home.is_relative() => "a relative path: give the full one".to_owned(),
            Ok(metadata) if metadata.is_dir() => String::new(),
            Ok(_) => "a file: name the folder that holds it".to_owned(),
            Err(error) => format!("which {}", files::reason(&error)),
        };
        if !why.is_empty() {
            tried.push(format!("{said}, {why}"));
            return None;
        }
        let mut empty = Vec::new();
        for folder in files::installation_folders(home, env::consts::ARCH) {
            // Whoever names the folder of an NCCL means it, whatever its name; else stubs only serve linkers.
            if files::is_stubs(&folder) && !(self.strict && folder == home) {
                continue;
            }
            let file = folder.join(OsStr::from_bytes(self.soname.to_bytes()));
            match file.symlink_metadata() {
                Ok(_) => match self.open(&file, RTLD_NOW) {
                    Ok(handle) => return Some(handle),
                    Err(why) => tried.push(why),
                },
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    empty.push(folder.display().to_string());
                }
                Err(error) => tried.push(format!("{} {}", file.display(), files::reason(&error))),
            }
        }
        if !empty.is_empty() {
            let (soname, empty) = (self.soname.to_string_lossy(), empty.join(", "));
            tried.push(format!("{said}, and there is no {soname} in {empty}"));
        }
        None
    }

    /// Opens a file that is a library of this kind. What has no slash is a name for the loader to find.
    fn open(&self, file: &Path, flags: c_int) -> Result<*mut c_void, String> {
        let bytes = file.as_os_str().as_bytes();
        let shown = file.display();
        if bytes.is_empty() {
            return Err("an empty path names no file".to_owned());
        }
        // The loader maps a file that was cut short, and the process dies when it reads on.
        if bytes.contains(&b'/') {
            files::soname(file, env::consts::ARCH).map_err(|why| format!("{shown} {why}"))?;
            let text = file.to_string_lossy();
            for token in ["ORIGIN", "LIB", "PLATFORM"] {
                if text.contains(&format!("${token}")) || text.contains(&format!("${{{token}}}")) {
                    return Err(format!(
                        "{shown}: the loader puts something else for ${token}; name the file by a link"
                    ));
                }
            }
        } else {
            let folders = setting("LD_LIBRARY_PATH").unwrap_or_default();
            for file in env::split_paths(&folders).map(|folder| folder.join(file)) {
                match files::soname(&file, env::consts::ARCH) {
                    Ok(_) => break,
                    Err(why) if why.starts_with(files::TRUNCATED) => {
                        return Err(format!("{} {why}", file.display()));
                    }
                    // The loader goes on to the next folder, or says it better.
                    Err(_) => {}
                }
            }
        }
        let name =
            CString::new(bytes).map_err(|_| format!("{shown}: a path cannot hold a zero byte"))?;
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

/// A variable that is set and not empty. None counts where whoever starts the program must not choose what
/// it runs.
fn setting(name: &str) -> Option<OsString> {
    // SAFETY: takes no pointer.
    let secure = unsafe { getauxval(AT_SECURE) } != 0;
    env::var_os(name).filter(|value| !secure && !value.is_empty())
}

/// `2.27`, `2.30.4`
fn dotted(release: [i32; 3]) -> String {
    match release {
        [major, minor, 0] => format!("{major}.{minor}"),
        [major, minor, patch] => format!("{major}.{minor}.{patch}"),
    }
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
