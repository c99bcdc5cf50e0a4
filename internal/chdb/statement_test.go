package chdb

import "testing"

func TestAStatementIsTakenApart(t *testing.T) {
	for _, c := range []struct {
		sql  string
		want statement
	}{
		{"SELECT 1", statement{verb: "SELECT", sql: "SELECT 1"}},
		{"select 1 format JSON", statement{verb: "SELECT", sql: "select 1 format JSON", format: "JSON"}},
		{"SELECT 1 SETTINGS a = 1 FORMAT CSV;\n", statement{verb: "SELECT", sql: "SELECT 1 SETTINGS a = 1 FORMAT CSV", format: "CSV"}},
		{"SELECT 'FORMAT x; y', \"FORMAT z\"", statement{verb: "SELECT", sql: "SELECT 'FORMAT x; y', \"FORMAT z\""}},
		{"SELECT format('{}', 1) -- FORMAT JSON; x", statement{verb: "SELECT", sql: "SELECT format('{}', 1) -- FORMAT JSON; x"}},
		{"/* INSERT ; */ SELECT 1", statement{verb: "SELECT", sql: "/* INSERT ; */ SELECT 1"}},
		{"SELECT $tag$ ; FORMAT x $tag$, 'it''s ;', 'a\\';'", statement{verb: "SELECT", sql: "SELECT $tag$ ; FORMAT x $tag$, 'it''s ;', 'a\\';'"}},
		{"(SELECT 1) UNION ALL (SELECT 2)", statement{verb: "SELECT", sql: "(SELECT 1) UNION ALL (SELECT 2)"}},
		{"SELECT format FROM t", statement{verb: "SELECT", sql: "SELECT format FROM t"}},
		{"SELECT 1 FORMAT CSV SETTINGS a = 1", statement{verb: "SELECT", sql: "SELECT 1 FORMAT CSV SETTINGS a = 1", format: "CSV"}},
		{"SELECT 1; SELECT 2", statement{verb: "SELECT", sql: "SELECT 1", several: true}},
		{"SELECT 1; -- end", statement{verb: "SELECT", sql: "SELECT 1"}},
		{"", statement{}},
		{"INSERT INTO t SELECT 1", statement{verb: "INSERT", sql: "INSERT INTO t SELECT 1"}},
		{"INSERT INTO t WITH x AS (SELECT 1) SELECT * FROM x FORMAT Null",
			statement{verb: "INSERT", sql: "INSERT INTO t WITH x AS (SELECT 1) SELECT * FROM x FORMAT Null", format: "Null"}},
		{"INSERT INTO t (a, `format`) FORMAT Native", statement{
			verb: "INSERT", sql: "INSERT INTO t (a, `format`) FORMAT Native", format: "Native", takesData: true, head: "INSERT INTO t (a, `format`) "}},
		{"INSERT INTO t (values) VALUES (1), (2); x", statement{
			verb: "INSERT", sql: "INSERT INTO t (values) VALUES (1), (2); x", format: "Values", takesData: true,
			head: "INSERT INTO t (values) ", data: " (1), (2); x"}},
		{"INSERT INTO t FORMAT CSV\n'a;\n", statement{
			verb: "INSERT", sql: "INSERT INTO t FORMAT CSV\n'a;\n", format: "CSV", takesData: true, head: "INSERT INTO t ", data: "'a;\n"}},
	} {
		if got := parse(c.sql); got != c.want {
			t.Errorf("%q:\n got %+v\nwant %+v", c.sql, got, c.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, sql := range []string{"SELECT 1 FORMAT x", "INSERT INTO t VALUES (1)", "'", "$a$", "/*", "--", "a;b"} {
		f.Add(sql)
	}
	f.Fuzz(func(t *testing.T, sql string) {
		if s := parse(sql); len(s.head)+len(s.data) > len(sql) || len(s.sql) > len(sql) {
			t.Errorf("%q became %+v", sql, s)
		}
	})
}
