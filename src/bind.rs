//! The two macros that every declaration is written in, and where a bound library came from.

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Binds a list of C functions, written in the syntax of an `extern` block.
///
/// This is the one place that knows how a declaration becomes callable. The list is an `extern` block.
/// Linked, the build script has told the linker which library holds the symbols; emulated, this crate
/// defines them itself.
macro_rules! bind {
    (
        library $library:ident;
        $(
            $(#[$meta:meta])*
            pub fn $name:ident($($parameter:ident: $kind:ty),* $(,)?) $(-> $answer:ty)?;
        )*
    ) => {
        unsafe extern "C" {
            $(
                $(#[$meta])*
                pub fn $name($($parameter: $kind),*) $(-> $answer)?;
            )*
        }

        /// The C name of each function declared here, in the header's order.
        pub const FUNCTIONS: &[&str] = &[$(stringify!($name)),*];
    };
}
pub(crate) use bind;

/// Declares a C enum as a transparent integer with one associated constant an enumerator.
///
/// The C names are strings, since a documentation alias can be nothing else. A value that is not
/// listed is kept as it is: libraries are updated more often than programs.
/// Further names for a value (aliases, counts) are written as plain constants beside it, so that
/// `Debug` never prints them.
macro_rules! c_enum {
    (
        $(#[$meta:meta])*
        pub enum $c_type:literal as $name:ident {
            $(
                $(#[$value_meta:meta])*
                $c_value:literal as $value:ident = $number:expr,
            )*
        }
    ) => {
        $(#[$meta])*
        #[doc(alias = $c_type)]
        #[repr(transparent)]
        #[derive(Clone, Copy, PartialEq, Eq, Hash)]
        pub struct $name(
            /// The number that C sees.
            pub std::ffi::c_int,
        );

        #[allow(non_upper_case_globals)]
        impl $name {
            $(
                $(#[$value_meta])*
                #[doc(alias = $c_value)]
                pub const $value: Self = Self($number);
            )*

            /// The enumerator's name in the C header; `None` for a value that this crate does not list.
            pub fn c_name(self) -> Option<&'static str> {
                $crate::bind::name(Self::NAMES, self.0).map(|(_, c_name, _)| *c_name)
            }

            /// Each value with its two names, `Debug`'s last.
            const NAMES: &[(std::ffi::c_int, &str, &str)] = &[
                $(($number, $c_value, stringify!($value)),)*
            ];
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                $crate::bind::debug(Self::NAMES, stringify!($name), self.0, f)
            }
        }
    };
}
pub(crate) use c_enum;

/// The entry of a value in an enum's table of names. A table, and no generated comparisons, since
/// those are most of what this crate would take to compile.
pub(crate) fn name<'a>(
    names: &'a [(c_int, &'static str, &'static str)],
    value: c_int,
) -> Option<&'a (c_int, &'static str, &'static str)> {
    names.iter().find(|(number, _, _)| *number == value)
}

/// `Debug` of every enum: the constant's name, or the type and the number.
pub(crate) fn debug(
    names: &[(c_int, &'static str, &'static str)],
    kind: &str,
    value: c_int,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    match name(names, value) {
        Some((_, _, name)) => f.write_str(name),
        None => write!(f, "{kind}({value})"),
    }
}

/// Where the functions of one library come from in this process.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoadedLibrary {
    /// The file that answers the calls, with symbolic links resolved.
    pub path: PathBuf,
    /// Every other file mapped into this process that brings the same functions: a second copy,
    /// usually of another version. Mixing two copies of NCCL fails in confusing ways.
    pub others: Vec<PathBuf>,
}

// The C library's own calls, present wherever the standard library for Linux is.
#[repr(C)]
struct DlInfo {
    file_name: *const c_char,
    file_base: *mut c_void,
    symbol_name: *const c_char,
    symbol_address: *mut c_void,
}

/// The leading fields of `dl_phdr_info`, which is only ever read through a pointer.
#[repr(C)]
struct DlPhdrInfo {
    address: usize,
    name: *const c_char,
}

unsafe extern "C" {
    fn dladdr(address: *const c_void, info: *mut DlInfo) -> c_int;
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
    fn dlclose(handle: *mut c_void) -> c_int;
    fn dl_iterate_phdr(
        visit: unsafe extern "C" fn(*mut DlPhdrInfo, usize, *mut c_void) -> c_int,
        data: *mut c_void,
    ) -> c_int;
}

/// The default search of the object that asks: what a call from this crate resolves to.
const RTLD_DEFAULT: *mut c_void = std::ptr::null_mut();
/// Lazy, and only if it is mapped already.
const RTLD_LAZY_NOLOAD: c_int = 0x1 | 0x4;

/// The file that brings `symbol` to this object, and the other mapped files that bring it too.
/// `None` where nothing does.
pub(crate) fn loaded_library(symbol: &CStr) -> Option<LoadedLibrary> {
    if cfg!(feature = "emulator") {
        // The program itself brings them, and does not export them.
        let path = std::env::current_exe().ok()?;
        let others = Vec::new();
        return Some(LoadedLibrary { path, others });
    }
    // SAFETY: `symbol` ends with a zero byte, and the default search takes no handle.
    let bound = unsafe { dlsym(RTLD_DEFAULT, symbol.as_ptr()) };
    let path = file_of(bound)?;
    let mut others: Vec<PathBuf> = Vec::new();
    for object in mapped_objects() {
        // SAFETY: the name ends with a zero byte; NOLOAD never runs an initializer.
        let handle = unsafe { dlopen(object.as_ptr(), RTLD_LAZY_NOLOAD) };
        if handle.is_null() {
            continue;
        }
        // SAFETY: `handle` was opened just above. A symbol of one of the object's dependencies is
        // found as well, which is why the address is asked for its file.
        let found = unsafe { dlsym(handle, symbol.as_ptr()) };
        let file = file_of(found);
        // SAFETY: gives back the reference that dlopen took, once.
        unsafe { dlclose(handle) };
        match file {
            Some(file) if file != path && !others.contains(&file) => others.push(file),
            _ => {}
        }
    }
    Some(LoadedLibrary { path, others })
}

/// Whether the file that brings `symbol` also brings `name`, one of the `declared` functions or any other.
pub(crate) fn has_function(symbol: &CStr, declared: &[&str], name: &str) -> bool {
    if cfg!(feature = "emulator") {
        return declared.contains(&name);
    }
    let Ok(name) = CString::new(name) else {
        return false;
    };
    // SAFETY: both names end with a zero byte, and the default search takes no handle.
    let (bound, found) = unsafe {
        (
            dlsym(RTLD_DEFAULT, symbol.as_ptr()),
            dlsym(RTLD_DEFAULT, name.as_ptr()),
        )
    };
    !found.is_null() && file_of(found) == file_of(bound)
}

/// The mapped file that holds `address`.
fn file_of(address: *const c_void) -> Option<PathBuf> {
    if address.is_null() {
        return None;
    }
    let mut info = DlInfo {
        file_name: std::ptr::null(),
        file_base: std::ptr::null_mut(),
        symbol_name: std::ptr::null(),
        symbol_address: std::ptr::null_mut(),
    };
    // SAFETY: any address may be asked for; `info` is written whole when the answer is not 0.
    if unsafe { dladdr(address, &mut info) } == 0 || info.file_name.is_null() {
        return None;
    }
    // SAFETY: the loader's own name of a mapped object, which stays mapped: nothing unloads it here.
    let name = unsafe { CStr::from_ptr(info.file_name) };
    let path = PathBuf::from(OsStr::from_bytes(name.to_bytes()));
    Some(path.canonicalize().unwrap_or(path))
}

/// The loader's names of the objects mapped into this process.
fn mapped_objects() -> Vec<CString> {
    unsafe extern "C" fn visit(object: *mut DlPhdrInfo, _size: usize, names: *mut c_void) -> c_int {
        // SAFETY: the loader passes a live object and the pointer given to dl_iterate_phdr below.
        let (name, names) = unsafe { ((*object).name, &mut *names.cast::<Vec<CString>>()) };
        if !name.is_null() {
            // SAFETY: a non-null object name ends with a zero byte.
            names.push(unsafe { CStr::from_ptr(name) }.to_owned());
        }
        0
    }
    let mut names: Vec<CString> = Vec::new();
    // SAFETY: `visit` matches the loader's signature and `names` outlives the call.
    unsafe { dl_iterate_phdr(visit, (&raw mut names).cast()) };
    names
}

/// A C string of a library as text; `None` for null. Bytes that are not UTF-8 are replaced.
///
/// # Safety
///
/// `text` is null or points to bytes that end with a zero byte.
pub(crate) unsafe fn text(text: *const c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: not null, and the caller vouches for the zero byte.
    let text = unsafe { CStr::from_ptr(text) };
    Some(text.to_string_lossy().trim().to_owned())
}
