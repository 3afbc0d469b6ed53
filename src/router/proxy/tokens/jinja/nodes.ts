import type { Value } from "../python/index.ts";

export interface Args {
  readonly args: readonly Expr[];
  readonly kwargs: readonly { readonly key: string; readonly value: Expr }[];
  readonly star: Expr | null;
  readonly doubleStar: Expr | null;
}

export type Operator = "+" | "-" | "*" | "/" | "//" | "%" | "**";
export type Comparison = "==" | "!=" | "<" | "<=" | ">" | ">=" | "in" | "not in";

interface SliceExpr {
  readonly kind: "slice";
  readonly of: Expr;
  readonly start: Expr | null;
  readonly stop: Expr | null;
  readonly step: Expr | null;
}

interface CompareExpr {
  readonly kind: "compare";
  readonly first: Expr;
  readonly rest: readonly { readonly op: Comparison; readonly value: Expr }[];
}

interface ConditionExpr {
  readonly kind: "condition";
  readonly test: Expr;
  readonly then: Expr;
  readonly otherwise: Expr | null;
}

export type CallExpr = { readonly kind: "call"; readonly of: Expr } & Args;

/** `of` is null in front of a filter block's body. */
export type FilterExpr = {
  readonly kind: "filter";
  readonly of: Expr | null;
  readonly name: string;
} & Args;

export type Expr =
  | { readonly kind: "const"; readonly value: Value }
  | { readonly kind: "name"; readonly name: string }
  | { readonly kind: "list" | "tuple"; readonly items: readonly Expr[] }
  | { readonly kind: "dict"; readonly items: readonly (readonly [Expr, Expr])[] }
  | { readonly kind: "attribute"; readonly of: Expr; readonly name: string }
  | { readonly kind: "item"; readonly of: Expr; readonly key: Expr }
  | SliceExpr
  | CallExpr
  | FilterExpr
  | ({ readonly kind: "test"; readonly of: Expr; readonly name: string } & Args)
  | { readonly kind: "unary"; readonly op: "not" | "-" | "+"; readonly of: Expr }
  | { readonly kind: "binary"; readonly op: Operator; readonly left: Expr; readonly right: Expr }
  | { readonly kind: "concat"; readonly parts: readonly Expr[] }
  | { readonly kind: "and" | "or"; readonly left: Expr; readonly right: Expr }
  | CompareExpr
  | ConditionExpr;

/** The target of an assignment. */
export type Target =
  | { readonly kind: "name"; readonly name: string }
  | { readonly kind: "slot"; readonly name: string; readonly slot: string }
  | { readonly kind: "tuple"; readonly items: readonly Target[] };

export interface Parameter {
  readonly name: string;
  readonly value: Expr | null;
}

export type Body = readonly Node[];

/** A statement with a body. */
interface Block<Kind extends string> {
  readonly kind: Kind;
  readonly body: Body;
}

export interface ForNode extends Block<"for"> {
  readonly target: Target;
  readonly iter: Expr;
  readonly test: Expr | null;
  readonly otherwise: Body;
  readonly isRecursive: boolean;
}

export interface MacroNode extends Block<"macro"> {
  readonly name: string;
  readonly parameters: readonly Parameter[];
}

interface IfNode {
  readonly kind: "if";
  readonly branches: readonly { readonly test: Expr; readonly body: Body }[];
  readonly otherwise: Body;
}

export type Node =
  | { readonly kind: "text"; readonly text: string }
  | { readonly kind: "output"; readonly value: Expr }
  | IfNode
  | ForNode
  | { readonly kind: "set"; readonly target: Target; readonly value: Expr }
  | (Block<"setBlock"> & { readonly target: Target; readonly filter: FilterExpr | null })
  | MacroNode
  | (Block<"callBlock"> & { readonly call: CallExpr; readonly parameters: readonly Parameter[] })
  | (Block<"filterBlock"> & { readonly filter: FilterExpr })
  | (Block<"with"> & {
      readonly items: readonly { readonly target: Target; readonly value: Expr }[];
    })
  /** `{% generation %}`: only a scope, since no caller needs token masks. */
  | Block<"generation">
  | { readonly kind: "break" | "continue" };
