/** Words of a slot's record, side by side in one cache line. */
export const SlotWord = { node: 0, generation: 1, nextFree: 2, state: 3 } as const;
export const SLOT_WORDS = 4;
