/** Just enough JSON for this example; an application uses its JSON library. */
final class Json {

    private Json() {
    }

    /** object("a", 1, "b", "x") is {"a":1,"b":"x"} */
    static String object(Object... namesAndValues) {
        var json = new StringBuilder();
        for (int i = 0; i < namesAndValues.length; i += 2) {
            json.append(i == 0 ? "{" : ",").append(text(namesAndValues[i])).append(":");
            json.append(namesAndValues[i + 1] instanceof Number n ? n.toString() : text(namesAndValues[i + 1]));
        }
        return json.append("}").toString();
    }

    private static String text(Object value) {
        var text = new StringBuilder("\"");
        value.toString().chars().forEach(c -> {
            if (c == '"' || c == '\\') {
                text.append('\\').append((char) c);
            } else if (c < ' ') {
                text.append(String.format("\\u%04x", c));
            } else {
                text.append((char) c);
            }
        });
        return text.append('"').toString();
    }
}
