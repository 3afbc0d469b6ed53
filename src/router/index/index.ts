export { createPrefixIndex, type PrefixIndexOptions } from "./native-index.ts";
export { ReferenceIndex } from "./reference-index.ts";
