//! Operators that a program makes: one table a communicator, and handles that fit no other.

use super::error::{INVALID_ARGUMENT, Outcome, refuse};
use super::exchange::{Operator, Scalar};
use crate::nccl::{NcclDataType, NcclRedOp};

const FIRST: i32 = NcclRedOp::NumOps.0;

/// A communicator's own operators.
#[derive(Debug)]
pub(super) struct Operators {
    /// What turns a place in the table into a handle, and back: different for each communicator,
    /// so that a handle is as good as never known to another.
    mask: i32,
    slots: Vec<Option<Own>>,
    /// Free places; the last is taken first.
    free: Vec<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Own {
    datatype: NcclDataType,
    scalar: Scalar,
}

impl Operators {
    /// An empty table of the communicator with this handle.
    pub(super) fn new(comm: u64) -> Self {
        // Mixed so that neighbours differ in many bits (the finalizer of splitmix64).
        let mut mixed = comm;
        for factor in [0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb] {
            mixed = (mixed ^ mixed >> 30).wrapping_mul(factor);
        }
        Self {
            mask: (mixed >> 33) as i32 & i32::MAX,
            slots: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Turns a raw handle into the one that the program sees, and the other way round. One that
    /// would look built in stays as it is.
    fn mangle(&self, handle: i32) -> i32 {
        match handle ^ self.mask {
            mangled if (0..FIRST).contains(&mangled) => handle,
            mangled => mangled,
        }
    }

    fn slot(&self, handle: NcclRedOp) -> Option<usize> {
        let raw = self.mangle(handle.0).checked_sub(FIRST)?;
        usize::try_from(raw)
            .ok()
            .filter(|slot| self.slots.get(*slot).is_some_and(Option::is_some))
    }

    pub(super) fn create(&mut self, datatype: NcclDataType, scalar: Scalar) -> NcclRedOp {
        let own = Some(Own { datatype, scalar });
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot] = own;
                slot
            }
            None => {
                self.slots.push(own);
                self.slots.len() - 1
            }
        };
        NcclRedOp(self.mangle(FIRST + slot as i32))
    }

    /// Frees an operator that is not built in.
    pub(super) fn destroy(&mut self, handle: NcclRedOp) -> Outcome {
        let Some(slot) = self.slot(handle) else {
            return Err(refuse(
                INVALID_ARGUMENT,
                format_args!("ncclRedOpDestroy : operator unknown to this communicator."),
            ));
        };
        self.slots[slot] = None;
        self.free.push(slot);
        Ok(())
    }

    /// What a call's operator does, and the only type it goes with, if it is not built in.
    pub(super) fn find(
        &self,
        handle: NcclRedOp,
        call: &str,
    ) -> Outcome<(Operator, Option<NcclDataType>)> {
        let built_in = match handle {
            NcclRedOp::Sum => Operator::Sum,
            NcclRedOp::Prod => Operator::Prod,
            NcclRedOp::Max => Operator::Max,
            NcclRedOp::Min => Operator::Min,
            NcclRedOp::Avg => Operator::Avg,
            _ => {
                let own = self.slot(handle).and_then(|slot| self.slots[slot]);
                return match own {
                    Some(own) if handle.0 >= 0 => {
                        Ok((Operator::PreMulSum(own.scalar), Some(own.datatype)))
                    }
                    _ => Err(refuse(
                        INVALID_ARGUMENT,
                        format_args!(
                            "{call} : reduction operation {} unknown to this communicator",
                            handle.0
                        ),
                    )),
                };
            }
        };
        Ok((built_in, None))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Scalar = Scalar::Immediate([1; 8]);

    fn operators(mask: i32) -> Operators {
        Operators {
            mask,
            ..Operators::new(1)
        }
    }

    #[test]
    fn handles_are_never_built_in_and_lead_back() {
        // The mask that would make the first handle 0, and others.
        for mask in [0, FIRST, 0x7fff_ffff, 0x1234_5678, 1] {
            let mut operators = operators(mask);
            for _ in 0..20 {
                let handle = operators.create(NcclDataType::Int8, ONE);
                assert!(handle.0 >= FIRST, "{handle:?} under {mask:#x}");
                let found = operators.find(handle, "");
                assert_eq!(
                    found,
                    Ok((Operator::PreMulSum(ONE), Some(NcclDataType::Int8)))
                );
            }
        }
    }

    #[test]
    fn a_destroyed_place_is_taken_again_first() {
        let mut operators = operators(0x55aa);
        let handles = [0; 5].map(|_| operators.create(NcclDataType::Int8, ONE));
        assert_eq!(operators.destroy(handles[3]), Ok(()));
        assert_eq!(operators.destroy(handles[1]), Ok(()));
        assert_eq!(operators.destroy(handles[1]), Err(INVALID_ARGUMENT));
        assert_eq!(operators.find(handles[1], ""), Err(INVALID_ARGUMENT));
        assert_eq!(operators.create(NcclDataType::Int32, ONE), handles[1]);
        assert_eq!(operators.create(NcclDataType::Int32, ONE), handles[3]);
    }

    #[test]
    fn a_handle_of_another_communicator_is_unknown() {
        let (mut one, other) = (Operators::new(0x10), Operators::new(0x20));
        assert_ne!(one.mask, other.mask);
        let handle = one.create(NcclDataType::Int8, ONE);
        assert_eq!(other.find(handle, ""), Err(INVALID_ARGUMENT));
        for garbage in [-1, i32::MIN, 5, 1000, i32::MAX] {
            assert_eq!(other.find(NcclRedOp(garbage), ""), Err(INVALID_ARGUMENT));
        }
    }
}
