import { HearthError } from "../../core/index.ts";
import type { Answer, Order } from "./index-worker-client.ts";
import { type LedgerStore, openLedgerStore } from "./retention/ledger-store.ts";
import { sqliteMessage } from "./store/open-database.ts";
import { type OpenedStore, openStore } from "./store/open-store.ts";

/**
 * Worker thread that runs all SQLite calls, so that only this thread waits for the disk. It has no
 * timers and makes no decisions: each order is answered once, in order. One worker has the index
 * open, another the ledger.
 */

declare const self: Worker;

let opened: OpenedStore | null = null;
let ledger: OpenedStore<LedgerStore> | null = null;

function obey(order: Order): Answer {
  if (order.kind === "open") {
    opened = openStore(order);
    const { store, setAside } = opened;
    return { kind: "opened", previous: store.previous, rows: store.rows, setAside };
  }
  if (order.kind === "openLedger") {
    ledger = openLedgerStore(order);
    const { store, setAside } = ledger;
    const { buffer: contents, length } = store.takeContents();
    return { kind: "ledgerOpened", contents, length, lastSeen: store.lastSeen, setAside };
  }
  if (order.kind === "commitLedger") {
    if (ledger === null) throw new HearthError("INTERNAL", "commit before the ledger is open");
    ledger.store.commit(order);
    return { kind: "committed", rows: ledger.store.rows, changes: order.changes };
  }
  if (order.kind === "close") {
    opened?.[Symbol.dispose]();
    ledger?.[Symbol.dispose]();
    [opened, ledger] = [null, null];
    return { kind: "closed" };
  }
  if (opened === null) throw new HearthError("INTERNAL", `${order.kind} before the index is open`);
  const { store } = opened;
  switch (order.kind) {
    case "nextBlocks":
      return { kind: "blocks", rows: store.nextBlocks() };
    case "nextAliases":
      return { kind: "aliases", rows: store.nextAliases() };
    case "commit": {
      const { changes, count, progress, durable } = order;
      store.commit(changes, count, progress, durable);
      return { kind: "committed", rows: store.rows, changes };
    }
  }
}

function answerTo(order: Order): Answer {
  try {
    return obey(order);
  } catch (thrown) {
    if (thrown instanceof HearthError && thrown.code !== "INTERNAL") {
      const { code, message, fix = "" } = thrown;
      return { kind: "refused", code, message, fix };
    }
    const changes = "changes" in order ? order.changes : null;
    return { kind: "failed", why: sqliteMessage(thrown), changes };
  }
}

/** Buffers to transfer instead of copying. */
function transfers(answer: Answer): ArrayBuffer[] {
  if (answer.kind === "committed" || answer.kind === "failed") {
    return answer.changes === null ? [] : [answer.changes];
  }
  if (answer.kind === "ledgerOpened") return [answer.contents];
  if (answer.kind !== "blocks" || answer.rows === null) return [];
  const { digests, parents, bytes, checksums, variants, lastSeen, uses } = answer.rows;
  const columns = [digests, parents, bytes, checksums, variants, lastSeen, uses];
  return columns.map((column) => column.buffer as ArrayBuffer);
}

self.onmessage = ({ data }: MessageEvent<Order>) => {
  const answer = answerTo(data);
  self.postMessage(answer, transfers(answer));
};
