/** Names that must not be mixed up, though all are plain strings or numbers at run time. */
export type Brand<Base, Name extends string> = Base & { readonly __brand: Name };

export type WorkerId = Brand<string, "WorkerId">;
export type SessionId = Brand<string, "SessionId">;

/** Index of a node in the block table; 0 is "none". Valid only with the node's generation. */
export type NodeId = Brand<number, "NodeId">;
export const NO_NODE = 0 as NodeId;

/** Small number a table gives a namespace (see `identity/`); 0 is never used. */
export type NamespaceIndex = Brand<number, "NamespaceIndex">;

/**
 * A worker id becomes part of message subjects, metric labels and certificate names, so it holds
 * neither dots nor wildcards.
 */
export const WORKER_ID = /^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$/;

/** A cluster's name is the trust domain in its hosts' certificates. */
export const CLUSTER_NAME = /^[a-z0-9][a-z0-9._-]{0,62}$/;

export function isWorkerId(text: string): text is WorkerId {
  return WORKER_ID.test(text);
}

export function isClusterName(text: string): boolean {
  return CLUSTER_NAME.test(text);
}
