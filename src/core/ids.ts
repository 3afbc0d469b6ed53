/** Names that must not be mixed up, though all are plain strings or numbers at run time. */
export type Brand<Base, Name extends string> = Base & { readonly __brand: Name };

export type WorkerId = Brand<string, "WorkerId">;
export type SessionId = Brand<string, "SessionId">;

/** Index of a node in the block table; 0 is "none". Valid only with the node's generation. */
export type NodeId = Brand<number, "NodeId">;
export const NO_NODE = 0 as NodeId;

/** Small number a table gives a namespace (see `identity/`); 0 is never used. */
export type NamespaceIndex = Brand<number, "NamespaceIndex">;
