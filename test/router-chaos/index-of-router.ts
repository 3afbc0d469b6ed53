import type { Native } from "../../src/native/index.ts";
import { type PrefixIndex, ReferenceIndex } from "../../src/router/index.ts";

/** The index that routers of this test use. */
export function chaosIndex(_native: Native): PrefixIndex {
  return new ReferenceIndex();
}
