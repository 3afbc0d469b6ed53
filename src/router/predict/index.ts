export { PredictedPrefixes, type PredictedPrefixesOptions } from "./predicted-prefixes.ts";
