import { HearthError } from "../../core/index.ts";
import type { Answer, Order } from "./index-worker-client.ts";
import { LedgerStore } from "./retention/ledger-store.ts";
import { IndexStore } from "./store/index-store.ts";
import { sqliteMessage } from "./store/open-database.ts";
import { type OpenedStore, openLocked } from "./store/open-store.ts";

/**
 * Worker thread that makes all SQLite calls for one database file, so that only this thread waits
 * for the disk. It has no timers and makes no decisions: it answers each order once, in order. One
 * worker opens the block index, another the retention ledger.
 */

declare const self: Worker;

let opened: OpenedStore<IndexStore | LedgerStore> | null = null;

function obey(order: Order): Answer {
  if (order.kind === "open") {
    const isIndex = order.file === "index";
    opened = isIndex ? openLocked(order, IndexStore) : openLocked(order, LedgerStore);
    const { store, setAside } = opened;
    const previous = store instanceof IndexStore ? store.previous : null;
    const lastSeen = store instanceof LedgerStore ? store.lastSeen : null;
    return { kind: "opened", previous, lastSeen, rows: store.rows, setAside };
  }
  if (order.kind === "close") {
    opened?.[Symbol.dispose]();
    opened = null;
    return { kind: "closed" };
  }
  if (opened === null) throw new HearthError("INTERNAL", `${order.kind} before the file is open`);
  const { store } = opened;
  // The casts are safe: a client sends only orders that fit the file that it opened.
  if (order.kind === "next") return { kind: "page", page: store.next(order.table as never) };
  const { changes, durable } = order;
  store.commit(changes as never, durable);
  return { kind: "committed", rows: store.rows, columns: columnsOf(order) };
}

function answerTo(order: Order): Answer {
  try {
    return obey(order);
  } catch (thrown) {
    if (thrown instanceof HearthError && thrown.code !== "INTERNAL") {
      const { code, message, fix = "" } = thrown;
      return { kind: "refused", code, message, fix };
    }
    return { kind: "failed", why: sqliteMessage(thrown), columns: columnsOf(order) };
  }
}

function columnsOf(order: Order): ArrayBuffer | null {
  return order.kind === "commit" && "columns" in order.changes ? order.changes.columns : null;
}

/** Returns the buffers of an answer that are transferred instead of copied. */
function transfers(answer: Answer): ArrayBuffer[] {
  if (answer.kind === "committed" || answer.kind === "failed") {
    return answer.columns === null ? [] : [answer.columns];
  }
  if (answer.kind !== "page" || answer.page === null || !("digests" in answer.page)) return [];
  const { digests, parents, bytes, checksums, variants, lastSeen, uses } = answer.page;
  const columns = [digests, parents, bytes, checksums, variants, lastSeen, uses];
  return columns.map((column) => column.buffer as ArrayBuffer);
}

self.onmessage = ({ data }: MessageEvent<Order>) => {
  const answer = answerTo(data);
  self.postMessage(answer, transfers(answer));
};
