package schemas
