import type { Value } from "../python/index.ts";

export interface Args {
  readonly args: readonly Expr[];
  readonly kwargs: readonly { readonly key: string; readonly value: Expr }[];
  readonly star: Expr | null;
  readonly doubleStar: Expr | null;
}

export type Operator = "+" | "-" | "*" | "/" | "//" | "%" | "**";
export type Comparison = "==" | "!=" | "<" | "<=" | ">" | ">=" | "in" | "not in";

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

export interface SliceExpr {
  readonly kind: "slice";
  readonly of: Expr;
  readonly start: Expr | null;
  readonly stop: Expr | null;
  readonly step: Expr | null;
}

export type CallExpr = { readonly kind: "call"; readonly of: Expr } & Args;

/** `of` is null in front of a filter block's body. */
export type FilterExpr = {
  readonly kind: "filter";
  readonly of: Expr | null;
  readonly name: string;
} & Args;

export interface CompareExpr {
  readonly kind: "compare";
  readonly first: Expr;
  readonly rest: readonly { readonly op: Comparison; readonly value: Expr }[];
}

export interface ConditionExpr {
  readonly kind: "condition";
  readonly test: Expr;
  readonly then: Expr;
  readonly otherwise: Expr | null;
}

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

export type Node =
  | { readonly kind: "text"; readonly text: string }
  | { readonly kind: "output"; readonly value: Expr }
  | IfNode
  | ForNode
  | { readonly kind: "set"; readonly target: Target; readonly value: Expr }
  | SetBlockNode
  | MacroNode
  | CallBlockNode
  | { readonly kind: "filterBlock"; readonly filter: FilterExpr; readonly body: Body }
  | WithNode
  /** `{% generation %}`: only a scope, since no caller needs token masks. */
  | { readonly kind: "generation"; readonly body: Body }
  | { readonly kind: "break" }
  | { readonly kind: "continue" };

export interface IfNode {
  readonly kind: "if";
  readonly branches: readonly { readonly test: Expr; readonly body: Body }[];
  readonly otherwise: Body;
}

export interface ForNode {
  readonly kind: "for";
  readonly target: Target;
  readonly iter: Expr;
  readonly test: Expr | null;
  readonly body: Body;
  readonly otherwise: Body;
  readonly isRecursive: boolean;
}

export interface SetBlockNode {
  readonly kind: "setBlock";
  readonly target: Target;
  readonly filter: FilterExpr | null;
  readonly body: Body;
}

export interface MacroNode {
  readonly kind: "macro";
  readonly name: string;
  readonly parameters: readonly Parameter[];
  readonly body: Body;
}

export interface CallBlockNode {
  readonly kind: "callBlock";
  readonly call: CallExpr;
  readonly parameters: readonly Parameter[];
  readonly body: Body;
}

export interface WithNode {
  readonly kind: "with";
  readonly items: readonly { readonly target: Target; readonly value: Expr }[];
  readonly body: Body;
}
