export { PrefixRuns, type Run, wordsOf } from "./prefix-runs.ts";
