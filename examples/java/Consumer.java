// SPDX-License-Identifier: MIT

import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.util.Scanner;

/** A consumer in Java with JDBC: a delivery is a line of standard input, `ID PAYLOAD`. See examples/README.md. */
public class Consumer {
    static final String BEGIN = "SELECT act, why FROM semel.inbox_begin('billing', ?, payload => ?::jsonb)";
    static final String EFFECT =
        "INSERT INTO ledger SELECT e->>'account', (e->>'cents')::int FROM (SELECT ?::jsonb) AS m (e)";
    static final String DONE = "SELECT semel.inbox_done('billing', ?)";

    static PreparedStatement prepare(Connection db, String sql, String... values) throws Exception {
        PreparedStatement statement = db.prepareStatement(sql);
        for (int i = 0; i < values.length; i++) {
            statement.setString(i + 1, values[i]);
        }
        return statement;
    }

    static void deliver(Connection db, String id, String payload) throws Exception {
        ResultSet told = prepare(db, BEGIN, id, payload).executeQuery(); // autocommit is off: this opens a transaction
        told.next();
        if (told.getString("act").equals("run")) {
            prepare(db, EFFECT, payload).executeUpdate();
            prepare(db, DONE, id).executeQuery();
        }
        db.commit(); // one transaction for the record and the effect
        System.out.println(id + " " + told.getString("act") + " " + told.getString("why"));
    }

    public static void main(String[] args) throws Exception {
        try (Connection db = DriverManager.getConnection(System.getenv("JDBC_URL"));
             Scanner in = new Scanner(System.in)) {
            db.setAutoCommit(false);
            while (in.hasNextLine()) {
                String[] line = in.nextLine().split(" ", 2);
                deliver(db, line[0], line[1]);
            }
        }
    }
}
