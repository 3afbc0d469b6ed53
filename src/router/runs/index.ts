export { HashSlots } from "./hash-slots.ts";
export { PrefixRuns, type Run, wordsOf } from "./prefix-runs.ts";
