import { type Kind, type Read, typeName } from "../kinds.ts";
import type { KeySpec } from "../spec.ts";
import { nearestWord } from "../suggest.ts";
import type { ListedWorker } from "./schema.ts";
import { workerTables } from "./worker-section.ts";

const KEYS: Readonly<Record<string, KeySpec<unknown>>> = workerTables.keys;

/**
 * A worker as an object has it, by the names and rules of a file: `worker` is its id, null is as
 * good as absent.
 */
export function readListedWorker(members: Readonly<Record<string, unknown>>): Read<ListedWorker> {
  const known = ["worker", ...Object.values(KEYS).map(({ key }) => key)];
  const unknown = Object.keys(members).find((name) => !known.includes(name));
  if (unknown !== undefined) {
    const near = nearestWord(unknown, known);
    const instead = near === null ? `there are ${known.join(", ")}` : `did you mean ${near}`;
    return { ok: false, what: `unknown member ${unknown.slice(0, 40)}`, instead };
  }
  const worker: Record<string, unknown> = {};
  const fields: [string, string, Kind<unknown>, unknown][] = [
    ["name", "worker", workerTables.nameKind, undefined],
    ...Object.entries(KEYS).map(
      ([field, { key, kind, standard }]): [string, string, Kind<unknown>, unknown] => [
        field,
        key,
        kind,
        standard.is === "literal" ? standard.literal : standard.is === "unset" ? null : undefined,
      ],
    ),
  ];
  for (const [field, key, kind, standard] of fields) {
    const raw = members[key] ?? standard;
    if (raw === undefined) return { ok: false, what: `${key} is missing`, instead: "give it" };
    if (raw === null) worker[field] = null;
    else {
      const read = kind.read(raw);
      if (!read.ok) return { ...read, what: `${key} ${read.what || typeName(raw)}` };
      worker[field] = read.value;
    }
  }
  if (worker.model === null && worker.url === null) {
    return { ok: false, what: "model is missing", instead: "give it, or a url" };
  }
  return { ok: true, value: Object.freeze(worker) as ListedWorker };
}
