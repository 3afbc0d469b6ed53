import { type PrefixTable, STRUCTS } from "../../native/index.ts";
import { RESIDENCY_TIERS } from "../../observability/activity/index.ts";
import type { HeldRun } from "../prefix-index.ts";
import type { TargetId } from "../workers.ts";

const PAGE_BYTES = 2 ** 16;
const { size: RUN_BYTES, fields } = STRUCTS.PrefixRun;

/** Everything that is held, or what one target holds, page by page. */
export function* runsOf(table: PrefixTable, target?: TargetId): Iterable<HeldRun> {
  const page = new Uint8Array(new ArrayBuffer(PAGE_BYTES));
  const view = new DataView(page.buffer);
  table.beginDump(target);
  while (true) {
    const end = table.dumpNext(page);
    if (end === 0) return;
    let at = 0;
    while (at < end) {
      const word = (field: { readonly offset: number }) => view.getUint32(at + field.offset, true);
      const from = at + RUN_BYTES;
      const to = from + 8 * word(fields.count);
      const hasParent = word(fields.has_parent) !== 0;
      yield {
        target: word(fields.target) as TargetId,
        tier: RESIDENCY_TIERS[word(fields.tier)]!,
        parent: hasParent ? view.getBigUint64(at + fields.parent.offset, true) : null,
        hashes: new BigUint64Array(page.buffer.slice(from, to)),
      };
      at = to;
    }
  }
}
