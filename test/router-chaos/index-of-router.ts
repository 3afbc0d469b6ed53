import { systemRandom } from "../../src/core/index.ts";
import type { Native } from "../../src/native/index.ts";
import { createPrefixIndex, type PrefixIndex } from "../../src/router/index.ts";

/** The index that routers of this test use: far more than workers hold fits into it. */
export function chaosIndex(native: Native): PrefixIndex {
  return createPrefixIndex({ native, random: systemRandom, bytesMax: 32 * 2 ** 20 });
}
