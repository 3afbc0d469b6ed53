import type { NamespaceIndex } from "../core/index.ts";
import {
  blockChainOf,
  type Hashing,
  macKeyIdOf,
  manifestProblem,
  type NamespaceManifest,
  namespaceKey,
} from "../identity/index.ts";
import type { Namespaces } from "../store/index.ts";
import { NAMESPACES_MAX, type NamespaceRequest } from "./protocol/index.ts";

/** Ranks of one model that a request may ask for at once. */
const RANKS_MAX = 256;

export interface NamespaceRef {
  readonly index: NamespaceIndex;
  /** 32 bytes. */
  readonly key: Uint8Array;
}

interface Opened extends NamespaceRef {
  readonly manifest: NamespaceManifest;
  /** Of all ranks, its own first; null until it was asked for. */
  family: readonly NamespaceRef[] | null;
}

/**
 * The namespaces of one connection: its manifest's, those of the other ranks, and those of requests
 * with an adapter or a salt. Handle 0 is the connection's own.
 */
export class ConnectionNamespaces {
  readonly #hashing: Hashing;
  readonly #namespaces: Namespaces;
  readonly #opened: Opened[];
  readonly #handles = new Map<string, number>();

  constructor(
    parts: { readonly hashing: Hashing; readonly namespaces: Namespaces },
    manifest: NamespaceManifest,
    own: NamespaceRef,
  ) {
    this.#hashing = parts.hashing;
    this.#namespaces = parts.namespaces;
    this.#opened = [{ ...own, manifest, family: null }];
    this.#handles.set(own.key.toHex(), 0);
  }

  /** Null: no namespace was given this handle. */
  of(handle: number): NamespaceRef | null {
    return this.#opened[handle] ?? null;
  }

  /** The handle of the namespace with these in the manifest's place; or why there is none. */
  open({ loraDigest, salt }: NamespaceRequest): number | string {
    const own = this.#opened[0]!.manifest;
    const manifest: NamespaceManifest = {
      ...own,
      loraDigest: loraDigest ?? own.loraDigest,
      tenantSalt: salt ?? own.tenantSalt,
    };
    const problem = manifestProblem(manifest);
    if (problem !== null) return problem;
    const key = namespaceKey(this.#hashing, manifest);
    const name = key.toHex();
    const known = this.#handles.get(name);
    if (known !== undefined) return known;
    if (this.#opened.length > NAMESPACES_MAX) {
      return `at most ${NAMESPACES_MAX} namespaces a connection: open another connection`;
    }
    const index = this.#namespaces.indexOf(key);
    if (index === null) return "this agent serves no more namespaces: restart it";
    this.#describe(index, manifest);
    this.#opened.push({ index, key, manifest, family: null });
    this.#handles.set(name, this.#opened.length - 1);
    return this.#opened.length - 1;
  }

  /** What pulls and landings need to know of it; routers do not list it. */
  #describe(index: NamespaceIndex, manifest: NamespaceManifest): void {
    const macKeyId = macKeyIdOf(manifest);
    if (macKeyId !== null) this.#namespaces.setMacKeyId(index, macKeyId);
    if (this.#namespaces.factsOf(index) !== null) return;
    const { model, blockTokens } = manifest;
    this.#namespaces.describe(index, { model, blockTokens, chain: blockChainOf(manifest) }, false);
  }

  /** The namespaces of all ranks, the connection's own first; or why there are none. */
  familyOf(handle: number): readonly NamespaceRef[] | string {
    const opened = this.#opened[handle]!;
    if (opened.family !== null) return opened.family;
    const { tpSize, ppSize, tpRank, ppRank } = opened.manifest;
    const ranks = tpSize * ppSize;
    if (ranks > RANKS_MAX) {
      return `a family of ${ranks} ranks: at most ${RANKS_MAX} are looked up at once`;
    }
    const family: NamespaceRef[] = [{ index: opened.index, key: opened.key }];
    for (let rank = 0; rank < ranks; rank++) {
      const [tp, pp] = [rank % tpSize, Math.floor(rank / tpSize)];
      if (tp === tpRank && pp === ppRank) continue;
      const manifest = { ...opened.manifest, tpRank: tp, ppRank: pp };
      const key = namespaceKey(this.#hashing, manifest);
      const index = this.#namespaces.indexOf(key);
      if (index === null) return "this agent serves no more namespaces: restart it";
      this.#describe(index, manifest);
      family.push({ index, key });
    }
    opened.family = family;
    return family;
  }
}
