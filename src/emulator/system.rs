//! What memory and sockets that processes share need of the C library, and std does not have.

use std::ffi::{CStr, c_char, c_int, c_long, c_uint, c_void};
use std::fs::File;
use std::io;
use std::mem::{offset_of, size_of};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::net::UnixStream;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering};

unsafe extern "C" {
    fn syscall(number: c_long, ...) -> c_long;
    fn mmap(
        address: *mut c_void,
        length: usize,
        protection: c_int,
        flags: c_int,
        file: c_int,
        offset: i64,
    ) -> *mut c_void;
    fn munmap(address: *mut c_void, length: usize) -> c_int;
    fn madvise(address: *mut c_void, length: usize, advice: c_int) -> c_int;
    fn fallocate(file: c_int, mode: c_int, offset: i64, length: i64) -> c_int;
    fn fcntl(file: c_int, command: c_int, ...) -> c_int;
    fn getsockopt(
        socket: c_int,
        level: c_int,
        option: c_int,
        value: *mut c_void,
        length: *mut c_uint,
    ) -> c_int;
    fn send(socket: c_int, bytes: *const c_void, length: usize, flags: c_int) -> isize;
    fn sendmsg(socket: c_int, message: *const Message, flags: c_int) -> isize;
    fn recvmsg(socket: c_int, message: *mut Message, flags: c_int) -> isize;
    fn geteuid() -> c_uint;
    fn getrlimit(resource: c_int, limits: *mut [u64; 2]) -> c_int;
    fn fstatfs(file: c_int, place: *mut c_void) -> c_int;
}

/// By number, since older C libraries have no function of this name.
const SYS_MEMFD_CREATE: c_long = if cfg!(target_arch = "x86_64") {
    319
} else {
    279
};
const MFD_CLOEXEC: c_uint = 1;
const MFD_ALLOW_SEALING: c_uint = 2;
const F_ADD_SEALS: c_int = 1033;
const F_GET_SEALS: c_int = 1034;
const F_SEAL_SHRINK: c_int = 2;
const TMPFS_MAGIC: c_long = 0x0102_1994;
const RLIMIT_FSIZE: c_int = 1;
const FALLOC_FL_KEEP_SIZE: c_int = 1;
const FALLOC_FL_PUNCH_HOLE: c_int = 2;
const PROT_READ_WRITE: c_int = 3;
const MAP_SHARED: c_int = 1;
const MAP_PRIVATE: c_int = 2;
const MAP_ANONYMOUS: c_int = 0x20;
const MAP_NORESERVE: c_int = 0x4000;
const MADV_WIPEONFORK: c_int = 18;
const SOL_SOCKET: c_int = 1;
const SO_PEERCRED: c_int = 17;
const SCM_RIGHTS: c_int = 1;
const MSG_DONTWAIT: c_int = 0x40;
const MSG_NOSIGNAL: c_int = 0x4000;
const MSG_CMSG_CLOEXEC: c_int = 0x4000_0000;

/// `struct msghdr`. Where musl has a smaller number and padding, this has a larger one whose upper
/// half is zero.
#[repr(C)]
struct Message {
    name: *mut c_void,
    name_length: c_uint,
    parts: *mut Part,
    part_count: usize,
    control: *mut c_void,
    control_length: usize,
    flags: c_int,
}

#[repr(C)]
struct Part {
    base: *mut c_void,
    length: usize,
}

/// `struct cmsghdr` with one file behind it.
#[repr(C)]
struct Control {
    length: usize,
    level: c_int,
    kind: c_int,
    file: c_int,
}

fn checked(answer: isize) -> io::Result<usize> {
    usize::try_from(answer).map_err(|_| io::Error::last_os_error())
}

/// A file without a name, in memory alone, that can grow and not shrink: gone with the last process
/// that has it.
pub(super) fn anonymous_file(name: &CStr) -> io::Result<File> {
    // SAFETY: the name is a C string; the call takes no other pointer.
    let file = unsafe {
        let name: *const c_char = name.as_ptr();
        syscall(SYS_MEMFD_CREATE, name, MFD_CLOEXEC | MFD_ALLOW_SEALING)
    };
    checked(file as isize)?;
    // SAFETY: a new descriptor, which nobody else has.
    let file = unsafe { File::from_raw_fd(file as c_int) };
    // SAFETY: no pointers.
    checked(unsafe { fcntl(file.as_raw_fd(), F_ADD_SEALS, F_SEAL_SHRINK) } as isize)?;
    Ok(file)
}

/// Whether a file keeps every byte that it has: reading it by a mapping never faults then. One of huge pages does
/// where there are none left.
pub(super) fn never_shrinks(file: &File) -> bool {
    // `struct statfs` begins with the kind, and is smaller.
    let mut system = [0 as c_long; 64];
    // SAFETY: more room than the struct takes.
    let answer = unsafe { fstatfs(file.as_raw_fd(), system.as_mut_ptr().cast()) };
    if answer != 0 || system[0] != TMPFS_MAGIC {
        return false;
    }
    // SAFETY: no pointers.
    let seals = unsafe { fcntl(file.as_raw_fd(), F_GET_SEALS) };
    seals >= 0 && seals & F_SEAL_SHRINK != 0
}

/// Gives a file so many bytes. An error, and not the signal that ends the process, where its user may have no file of
/// that size.
pub(super) fn grow(file: &File, length: u64) -> io::Result<()> {
    let mut limits = [u64::MAX; 2];
    // SAFETY: the limits are two numbers.
    unsafe { getrlimit(RLIMIT_FSIZE, &mut limits) };
    if length > limits[0] {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    file.set_len(length)
}

/// Gives the memory behind a part of a file back; it reads as zeros from now on.
pub(super) fn punch(file: &File, offset: u64, length: usize) {
    let mode = FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE;
    // SAFETY: no pointers. If it fails, the memory stays taken, and nothing else.
    unsafe { fallocate(file.as_raw_fd(), mode, offset as i64, length as i64) };
}

/// A part of a file in this process's memory.
#[derive(Debug)]
pub(super) struct Mapping {
    address: *mut u8,
    length: usize,
}

// SAFETY: it is only an owner of bytes; whoever reads and writes them orders that.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// `offset` is a whole number of pages; the file has at least so many bytes.
    pub(super) fn new(file: &File, offset: u64, length: usize) -> io::Result<Self> {
        // SAFETY: a new place in memory, chosen by the system.
        let address = unsafe {
            mmap(
                ptr::null_mut(),
                length,
                PROT_READ_WRITE,
                MAP_SHARED | MAP_NORESERVE,
                file.as_raw_fd(),
                offset as i64,
            )
        };
        match address.addr() {
            usize::MAX => Err(io::Error::last_os_error()),
            _ => Ok(Self {
                address: address.cast(),
                length,
            }),
        }
    }

    pub(super) fn address(&self) -> *mut u8 {
        self.address
    }

    pub(super) fn length(&self) -> usize {
        self.length
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and unmapped here alone.
        unsafe { munmap(self.address.cast(), self.length) };
    }
}

/// Whether the process at the other end belongs to this one's user.
pub(super) fn is_same_user(stream: &UnixStream) -> bool {
    // `struct ucred`: process, user, group.
    let mut peer = [0, c_uint::MAX, 0];
    let mut length = size_of_val(&peer) as c_uint;
    // SAFETY: room for the struct, of the length that is passed; the other call takes no pointer.
    let (answer, own) = unsafe {
        let place = peer.as_mut_ptr().cast();
        let socket = stream.as_raw_fd();
        let answer = getsockopt(socket, SOL_SOCKET, SO_PEERCRED, place, &mut length);
        (answer, geteuid())
    };
    answer == 0 && peer[1] == own
}

/// Sends what goes without waiting, and says how much that was. A peer that is gone is an error,
/// never a signal.
pub(super) fn send_now(stream: &UnixStream, bytes: &[u8], wait: bool) -> io::Result<usize> {
    let flags = if wait { 0 } else { MSG_DONTWAIT } | MSG_NOSIGNAL;
    // SAFETY: as many bytes as the slice has.
    let sent = unsafe {
        send(
            stream.as_raw_fd(),
            bytes.as_ptr().cast(),
            bytes.len(),
            flags,
        )
    };
    checked(sent)
}

/// Sends a few bytes and a file with them.
pub(super) fn send_file(stream: &UnixStream, bytes: &[u8], file: &File) -> io::Result<()> {
    let mut part = Part {
        base: bytes.as_ptr().cast_mut().cast(),
        length: bytes.len(),
    };
    let mut control = Control {
        length: offset_of!(Control, file) + size_of::<c_int>(),
        level: SOL_SOCKET,
        kind: SCM_RIGHTS,
        file: file.as_raw_fd(),
    };
    let message = message(&mut part, &mut control);
    // SAFETY: the message's pointers live until the call returns, and it writes to none.
    let sent = unsafe { sendmsg(stream.as_raw_fd(), &message, MSG_NOSIGNAL) };
    match checked(sent)? == bytes.len() {
        true => Ok(()),
        false => Err(io::ErrorKind::WriteZero.into()),
    }
}

/// Receives so many bytes at most, and the file that came with them, if one did.
pub(super) fn receive_file(
    stream: &UnixStream,
    bytes: &mut [u8],
) -> io::Result<(usize, Option<File>)> {
    let mut part = Part {
        base: bytes.as_mut_ptr().cast(),
        length: bytes.len(),
    };
    let mut control = Control {
        length: 0,
        level: 0,
        kind: 0,
        file: -1,
    };
    let whole = offset_of!(Control, file) + size_of::<c_int>();
    let received = loop {
        let mut message = message(&mut part, &mut control);
        // Without the padding at its end, which has room for a second file: nobody would close that.
        message.control_length = whole;
        // SAFETY: the message's pointers live until the call returns, with as much room as it says.
        let received = unsafe { recvmsg(stream.as_raw_fd(), &mut message, MSG_CMSG_CLOEXEC) };
        match checked(received) {
            // As after SIGSTOP and SIGCONT, where the socket has a time limit.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            received => break (received?, message.control_length),
        }
    };
    let (received, control_length) = received;
    let came = control_length >= whole
        && control.length == whole
        && (control.level, control.kind) == (SOL_SOCKET, SCM_RIGHTS);
    // SAFETY: the system has just made this descriptor for us.
    let file = came.then(|| unsafe { File::from_raw_fd(control.file) });
    Ok((received, file))
}

fn message(part: &mut Part, control: &mut Control) -> Message {
    Message {
        name: ptr::null_mut(),
        name_length: 0,
        parts: part,
        part_count: 1,
        control: ptr::from_mut(control).cast(),
        control_length: size_of::<Control>(),
        flags: 0,
    }
}

/// One byte that is 1 in the process that used the emulator first, and 0 in its forks.
static MARK: AtomicPtr<AtomicU8> = AtomicPtr::new(ptr::null_mut());

/// Remembers that the emulator is used in this process. Called once.
pub(super) fn mark_process() {
    const PAGE: usize = 4096;
    let flags = MAP_PRIVATE | MAP_ANONYMOUS;
    // SAFETY: a new place in memory, chosen by the system, which starts as zeros.
    let page = unsafe { mmap(ptr::null_mut(), PAGE, PROT_READ_WRITE, flags, -1, 0) };
    if page.addr() == usize::MAX {
        return;
    }
    // SAFETY: the page is ours.
    if unsafe { madvise(page, PAGE, MADV_WIPEONFORK) } == 0 {
        let mark = page.cast::<AtomicU8>();
        // SAFETY: the page is never given back; a byte has no alignment.
        unsafe { &*mark }.store(1, Ordering::Relaxed);
        MARK.store(mark, Ordering::Release);
    }
}

/// Whether this process was forked from one that had used the emulator. What that one had does not
/// work here, its threads least of all.
pub(super) fn is_fork() -> bool {
    let mark = MARK.load(Ordering::Acquire);
    // SAFETY: null, or the byte that lives for ever.
    unsafe { mark.as_ref() }.is_some_and(|mark| mark.load(Ordering::Relaxed) == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_was_sent_is_the_same_memory() {
        let file = anonymous_file(c"test").unwrap();
        file.set_len(8192).unwrap();
        assert!(never_shrinks(&file) && file.set_len(4096).is_err());
        let (here, there) = UnixStream::pair().unwrap();
        assert!(is_same_user(&here));
        send_file(&here, b"magic", &file).unwrap();
        let mut bytes = [0; 5];
        let (count, received) = receive_file(&there, &mut bytes).unwrap();
        assert_eq!((count, &bytes), (5, b"magic"));
        let maps = [&file, &received.unwrap()].map(|file| Mapping::new(file, 4096, 4096).unwrap());
        // SAFETY: both pages are mapped, and nobody else uses them.
        unsafe {
            maps[0].address().write(7);
            assert_eq!(maps[1].address().read(), 7);
            punch(&file, 4096, 4096);
            assert_eq!(maps[1].address().read(), 0);
        }
        send_now(&here, b"plain", false).unwrap();
        let (count, received) = receive_file(&there, &mut bytes).unwrap();
        assert!((count, &bytes) == (5, b"plain") && received.is_none());
        drop(here);
        assert!(send_now(&there, b"x", false).is_err());
    }
}
