export { RENDER_LIMITS, type RenderLimits } from "./budget.ts";
export { TemplateSyntaxError } from "./lexer.ts";
export { type RenderOptions, Template } from "./template.ts";
