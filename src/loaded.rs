//! Which file a library came from, asked of the dynamic loader.

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::ptr::null_mut;

/// Where the functions of one library come from in this process.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoadedLibrary {
    /// The file that answers the calls, as the kernel mapped it; it may have been replaced since, and
    /// ends with ` (deleted)` then.
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
    pub(crate) fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
    pub(crate) fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
    pub(crate) fn dlclose(handle: *mut c_void) -> c_int;
    fn dl_iterate_phdr(
        visit: unsafe extern "C" fn(*mut DlPhdrInfo, usize, *mut c_void) -> c_int,
        data: *mut c_void,
    ) -> c_int;
}

/// The default search of the object that asks.
const RTLD_DEFAULT: *mut c_void = null_mut();
pub(crate) const RTLD_LAZY: c_int = 0x1;
#[cfg(dlopen)]
pub(crate) const RTLD_NOW: c_int = 0x2;
/// Only if it is mapped already.
pub(crate) const RTLD_NOLOAD: c_int = 0x4;

/// One of a library's functions, by which the library is found.
pub(crate) struct Function {
    /// What calls of it from this crate are bound to.
    pub(crate) address: *const c_void,
    pub(crate) name: &'static str,
}

/// The answer to a request for a file where calls do not go to a file that can be chosen.
#[cfg(not(dlopen))]
pub(crate) fn cannot_load(file: &std::path::Path) -> Result<(), String> {
    Err(format!(
        "this program's binding is {:?}, and only the feature dlopen (without emulator) can open {}",
        crate::BINDING,
        file.display()
    ))
}

/// The file that brings `function` to this object, and the other mapped files that bring it too.
/// `None` where nothing does.
pub(crate) fn loaded_library(function: &Function) -> Option<LoadedLibrary> {
    if cfg!(feature = "emulator") {
        // The program itself brings it, and does not export it.
        let path = std::env::current_exe().ok()?;
        let others = Vec::new();
        return Some(LoadedLibrary { path, others });
    }
    let symbol = CString::new(function.name).ok()?;
    let bound = bound(function, &symbol);
    let library = Object::of(bound)?;
    let mut seen = vec![library.base];
    let mut others = Vec::new();
    for name in mapped_objects() {
        // A symbol of one of the object's dependencies is found as well, hence the question whose it is.
        let found = find_in(&name, &symbol);
        match Object::of(found) {
            Some(object) if !seen.contains(&object.base) => {
                seen.push(object.base);
                others.push(object.path(found));
            }
            _ => {}
        }
    }
    let path = library.path(bound);
    Some(LoadedLibrary { path, others })
}

/// Whether the file that brings `function` also brings `name`, one of the `declared` functions or any other.
pub(crate) fn has_function(function: &Function, declared: &[&str], name: &str) -> bool {
    if cfg!(feature = "emulator") {
        return declared.contains(&name);
    }
    let (Ok(symbol), Ok(name)) = (CString::new(function.name), CString::new(name)) else {
        return false;
    };
    let Some(library) = Object::of(bound(function, &symbol)) else {
        return false;
    };
    Object::of(find_in(&library.name, &name)).is_some_and(|object| object.base == library.base)
}

/// The file that holds `address`.
#[cfg(dlopen)]
pub(crate) fn file_of(address: *const c_void) -> Option<PathBuf> {
    Object::of(address).map(|object| object.path(address))
}

/// Where calls of `function` from this crate go.
fn bound(function: &Function, symbol: &CStr) -> *const c_void {
    let own = Object::of(loaded_library as *const c_void);
    match Object::of(function.address) {
        Some(object) if own.is_none_or(|own| own.base != object.base) => function.address,
        // Without position-independent code, the address is that of a jump in the program itself.
        // SAFETY: the name ends with a zero byte, and the default search takes no handle.
        _ => unsafe { dlsym(RTLD_DEFAULT, symbol.as_ptr()) },
    }
}

/// A mapped file. Its base tells it from all others; names do not, since files are replaced and links
/// point elsewhere later.
struct Object {
    base: *mut c_void,
    /// The loader's name of it.
    name: CString,
}

impl Object {
    /// The one that holds `address`.
    fn of(address: *const c_void) -> Option<Self> {
        if address.is_null() {
            return None;
        }
        let mut info = DlInfo {
            file_name: std::ptr::null(),
            file_base: null_mut(),
            symbol_name: std::ptr::null(),
            symbol_address: null_mut(),
        };
        // SAFETY: any address may be asked for; `info` is written whole when the answer is not 0.
        if unsafe { dladdr(address, &mut info) } == 0 || info.file_name.is_null() {
            return None;
        }
        // SAFETY: the loader's own name of a mapped object, which nothing unloads while it is bound.
        let name = unsafe { CStr::from_ptr(info.file_name) }.to_owned();
        let base = info.file_base;
        Some(Self { base, name })
    }

    /// The file mapped at `address`, which is within this object: as the kernel tells it, else by the
    /// loader's name, which may be relative.
    fn path(&self, address: *const c_void) -> PathBuf {
        let maps = std::fs::read("/proc/self/maps").unwrap_or_default();
        let at = address as usize;
        for line in maps.split(|byte| *byte == b'\n') {
            // "start-end rights offset device inode", blanks, and the path.
            let Some(start) = line.iter().position(|byte| *byte == b'/') else {
                continue;
            };
            let range = String::from_utf8_lossy(
                line.split(|byte| *byte == b' ').next().unwrap_or_default(),
            );
            let mut ends = range
                .split('-')
                .map(|end| usize::from_str_radix(end, 16).unwrap_or(0));
            if let (Some(low), Some(high)) = (ends.next(), ends.next()) {
                if (low..high).contains(&at) {
                    return PathBuf::from(OsStr::from_bytes(&line[start..]));
                }
            }
        }
        let path = PathBuf::from(OsStr::from_bytes(self.name.to_bytes()));
        path.canonicalize().unwrap_or(path)
    }
}

/// What the mapped object of this loader's name, or one of its dependencies, has under `symbol`.
fn find_in(object: &CStr, symbol: &CStr) -> *const c_void {
    // SAFETY: the name ends with a zero byte; NOLOAD never runs an initializer.
    let handle = unsafe { dlopen(object.as_ptr(), RTLD_LAZY | RTLD_NOLOAD) };
    if handle.is_null() {
        return std::ptr::null();
    }
    // SAFETY: `handle` was opened just above, and is given back once.
    unsafe {
        let found = dlsym(handle, symbol.as_ptr());
        dlclose(handle);
        found
    }
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
